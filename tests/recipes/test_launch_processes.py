# SPDX-License-Identifier: Apache-2.0
"""Server and training of the launcher live and end together, whatever they do and whatever is done to them.

The processes are real; in the place of vLLM's server, which test_launch.py starts, is a small one of Python's own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
TOKEN = "a-token-for-these-tests"

LAUNCHER = f"""
import argparse, json, sys
from pathlib import Path
sys.path.insert(0, {str(RECIPES)!r})
import launch
launch.SECONDS_TO_END = 0.5
given = json.loads(sys.argv[1])
serve, train = (given[side] and (given[side], {{"SIDE": side}}) for side in ("serve", "train"))
args = argparse.Namespace(host="127.0.0.1", port=given["port"], token=given["token"], script=[given["script"]],
                          server_log=Path(given["log"]), server_timeout=60.0)
sys.exit(launch.run(args, serve, train))
"""

# Every script finds the folder of its test beside itself.
FOLDER = "import os, signal, subprocess, sys\nfolder = os.path.dirname(os.path.abspath(__file__))\n"

# On the way to /die it dies.
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(200 if self.headers["Authorization"] == "Bearer " + sys.argv[2] else 401)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("serving", flush=True)
server.serve_forever()
"""

# A step that an interrupt lets end, as in the trainer: the first one is taken note of, the second is not caught, and
# the exit status says that there was one. The step takes until something comes through the fifo. The worker beside it
# has the same command line.
STEP = """
rank = sys.argv[1] if len(sys.argv) > 1 else ""
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: print("worker was signalled", flush=True))
    while True:
        signal.pause()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("step", flush=True)
signal.sigwait({signal.SIGTERM})
print(f"noted by rank {rank}\\n", end="", flush=True)  # one write: the ranks share a pipe
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
print("checkpoint" if open(folder + "/fifo" + rank).read() else "nothing", flush=True)
sys.exit(143)
"""

# Like torchrun: two ranks in sessions of their own, and a signal that would be passed on to them.
RANKS = """
signal.signal(signal.SIGTERM, lambda *_: print("launcher was signalled", flush=True))
command = [sys.executable, "-u", *sys.argv[1:]]
ranks = [subprocess.Popen([*command, str(rank)], start_new_session=True) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""

# A worker in a session of its own that no polite signal ends, and that outlives its parent.
STUBBORN = """
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
worker = [sys.executable, "-c", code]
subprocess.Popen(worker, start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
"""


class Launched:
    """A launcher in a process of its own, and what can be found out about the processes that it started."""

    def __init__(
        self,
        folder: Path,
        training: str | None,
        server: str | None = SERVER,
        under: tuple[str, ...] = (),
        token: str = TOKEN,
        port: int | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = port or listener.getsockname()[1]
        for name, code in (("server", server), ("script", training), ("ranks", RANKS)):
            (folder / f"{name}.py").write_text(FOLDER + (code or ""))
        script = str(folder / "script.py")
        given = {"port": self.port, "token": token, "log": str(folder / "logs" / "server.log"), "script": script}
        given["serve"] = server and [sys.executable, str(folder / "server.py"), str(self.port), TOKEN]
        given["train"] = training and [sys.executable, *under, script]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=os.environ | {"MARK": self.mark, "PORT": str(self.port)},
        )

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *exception: object) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def wait_for(self, *words: str) -> str:
        """What is printed until each of these words has come."""
        seen = ""
        for line in self.process.stdout:
            seen += line
            if all(seen.count(word) >= words.count(word) for word in words):
                return seen
        raise AssertionError(f"never printed {words}:\n{seen}")

    def finish(self) -> tuple[int, str]:
        """Exit status and the rest of the output, which ends when the last process that holds it has ended."""
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output

    def alive(self) -> list[int]:
        """Processes that descend from this launcher, found by a variable that they inherit."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(int(pid))
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.alive() == []
        socket.create_server(("127.0.0.1", self.port)).close()


@pytest.mark.parametrize(("code", "status"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("1 / 0", 1)])
def test_exit_status_is_the_trainings_and_nothing_is_left(code: str, status: int, tmp_path: Path) -> None:
    with Launched(tmp_path, code) as launched:
        returned, output = launched.finish()
        assert returned == status, output
        launched.assert_nothing_is_left()
    assert (tmp_path / "logs" / "server.log").read_text().startswith("serving")


def test_training_that_a_signal_ended_has_the_shells_status(tmp_path: Path) -> None:
    with Launched(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") as launched:
        assert launched.finish()[0] == 128 + signal.SIGKILL


def test_server_that_dies_at_start_up_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = "for i in range(100): print('line', i)\nsys.exit('no such model')"
    with Launched(tmp_path, "print('trained')", server) as launched:
        status, output = launched.finish()
        launched.assert_nothing_is_left()
    assert status == 1
    assert "the server ended before it was ready" in output and "no such model" in output
    assert "line 99\n" in output and "line 50\n" not in output and "trained" not in output


def test_server_with_another_token_is_reported_at_once(tmp_path: Path) -> None:
    with Launched(tmp_path, "print('trained')", token="another-token-of-the-trainer") as launched:
        status, output = launched.finish()
        launched.assert_nothing_is_left()
    assert (status, "has another token" in output, "trained" in output) == (1, True, False)


def test_training_alone_uses_the_server_that_is_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with Launched(tmp_path, None) as serving:
        serving.wait_for("is ready")
        with Launched(tmp_path, "print('trained')", server=None, port=serving.port) as training:
            status, output = training.finish()
            assert (status, "trained" in output) == (0, True)
        assert len(serving.alive()) == 2  # the launcher and the server
        serving.process.send_signal(signal.SIGTERM)
        assert serving.finish()[0] == 128 + signal.SIGTERM
        serving.assert_nothing_is_left()


def test_stubborn_workers_in_other_sessions_are_ended(tmp_path: Path) -> None:
    with Launched(tmp_path, STUBBORN) as launched:
        status, output = launched.finish()
        assert status == 0, output
        launched.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_lets_the_step_end(number: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with Launched(tmp_path, STEP) as launched:
        launched.wait_for("step")
        launched.process.send_signal(number)
        launched.wait_for("noted")
        (tmp_path / "fifo").write_text("on")
        status, output = launched.finish()
        assert (status, "checkpoint" in output) == (128 + signal.SIGTERM, True), output
        launched.assert_nothing_is_left()


def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with Launched(tmp_path, STEP) as launched:
        launched.wait_for("step")
        launched.process.send_signal(signal.SIGINT)
        launched.wait_for("noted", "once more")
        launched.process.send_signal(signal.SIGINT)
        status, output = launched.finish()
        assert (status, "checkpoint" in output) == (128 + signal.SIGINT, False), output
        launched.assert_nothing_is_left()


def test_signal_reaches_the_ranks_once_and_neither_launchers_nor_workers(tmp_path: Path) -> None:
    for rank in range(2):
        os.mkfifo(tmp_path / f"fifo{rank}")
    with Launched(tmp_path, STEP, under=("-m", "ranks")) as launched:
        launched.wait_for("step", "step")
        launched.process.send_signal(signal.SIGTERM)
        output = launched.wait_for("noted by rank 0", "noted by rank 1")
        for rank in range(2):
            (tmp_path / f"fifo{rank}").write_text("on")
        output += launched.wait_for("checkpoint", "checkpoint")
        status, rest = launched.finish()
        assert (status, "was signalled" in output) == (128 + signal.SIGTERM, False), output + rest
        launched.assert_nothing_is_left()


def test_signal_while_the_server_starts_ends_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    server = "open(folder + '/fifo', 'w').write('starting')\nsignal.pause()"
    with Launched(tmp_path, "print('trained')", server) as launched:
        assert (tmp_path / "fifo").read_text() == "starting"
        launched.process.send_signal(signal.SIGTERM)
        status, output = launched.finish()
        assert (status, "trained" in output) == (128 + signal.SIGTERM, False)
        launched.assert_nothing_is_left()


def test_server_that_dies_under_the_training_ends_it(tmp_path: Path) -> None:
    training = """
import http.client
connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["PORT"]))
connection.request("GET", "/die")
signal.pause()
"""
    with Launched(tmp_path, training) as launched:
        status, output = launched.finish()
        assert (status, "the server died under the training" in output) == (1, True), output
        launched.assert_nothing_is_left()


def test_server_and_training_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    held = "held = open(folder + '/fifo', 'w')\n"  # until it ends
    with Launched(tmp_path, held + "signal.pause()", held + SERVER) as launched:
        with open(tmp_path / "fifo") as fifo:
            launched.wait_for("is ready")
            launched.process.kill()
            assert fifo.read() == ""
        assert launched.finish()[0] == -signal.SIGKILL
        assert launched.alive() == []
