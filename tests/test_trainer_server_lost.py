# SPDX-License-Identifier: Apache-2.0
"""Training on a vLLM server that is killed in the middle of a step."""

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import TrainerCallback

from tests.processes import forked, process_environment
from tests.runs import duet_trainer, logged
from tests.server_process import GATE, GUARD, ServerProcess
from tests.tiny import tiny_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

NUM_STEPS = 4
LONG = {"max_completion_length": 200, "max_steps": NUM_STEPS}


_PIECE = 1 << 16


class Wire:
    """Passes the bytes of every connection to a server, until that server is to die with an answer on its way.

    Reading the server's metrics instead would leave it to chance whether it is busy when the signal arrives.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._left: int | None = None
        self._then: Callable[[], object] = lambda: None
        self.struck = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def strike(self, answers: int, then: Callable[[], object] = lambda: None) -> None:
        """From now on pass so many answers to completion requests, kill the server with the next one, do `then`."""
        with self._lock:
            self._left, self._then = answers, then

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed at the end of the test
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            try:
                upstream = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:  # nobody listens there: so it is for the client
                return
            with upstream:
                asked = threading.Event()
                threading.Thread(target=self._requests, args=(client, upstream, asked), daemon=True).start()
                self._answers(upstream, client, asked)

    def _requests(self, client: socket.socket, upstream: socket.socket, asked: threading.Event) -> None:
        for piece in _pieces(client):
            if piece.startswith(b"POST /v1/completions "):
                asked.set()
            try:
                upstream.sendall(piece)
            except OSError:
                break
        _shut(upstream)

    def _answers(self, upstream: socket.socket, client: socket.socket, asked: threading.Event) -> None:
        for piece in _pieces(upstream):
            if asked.is_set():
                asked.clear()
                if self._last():
                    break
            try:
                client.sendall(piece)
            except OSError:
                break
        _shut(client)
        _shut(upstream)

    def _last(self) -> bool:
        """Count an answer; True if it is the one that the server dies with."""
        with self._lock:
            if self._left is None or self._left > 0:
                self._left = None if self._left is None else self._left - 1
                return False
            self._left = None
            self.server.kill()
            self._then()
            self.struck.set()
            return True


def _pieces(end: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            piece = end.recv(_PIECE)
        except OSError:
            return
        if not piece:
            return
        yield piece


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # gone already
        pass


@pytest.fixture(scope="module")
def process(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_path, tmp_path_factory.mktemp("mortal"), *GATE, *GUARD) as process:
        yield process


@pytest.fixture
def mortal(process: ServerProcess, monkeypatch) -> ServerProcess:
    """A server of this module, alive at the start of each test, and its environment."""
    monkeypatch.setenv("DUET_SERVER_TOKEN", process.token)
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(process.weights))
    process.start()
    return process


@pytest.fixture
def wire(mortal: ServerProcess) -> Iterator[Wire]:
    with Wire(mortal) as wire:
        yield wire


def options(server: ServerProcess | Wire, **overrides) -> dict:
    return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url, **LONG, **overrides}


class Failure(TrainerCallback):
    """Kills the server in the middle of the second batch."""

    def __init__(self, wire: Wire, then: Callable[[], object] = lambda: None) -> None:
        self.wire, self.then = wire, then

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.wire.strike(1, self.then)


# The rollouts of a step are four requests or more, so that the server dies in the second step or the third.
ANSWERS = 10


@pytest.mark.distributed
def test_a_restarted_server_gets_the_weights_again_and_no_rollout_counts_twice(mortal, wire, tiny_path, tmp_path):
    """Two processes, which hold the same state afterwards."""
    # 0.85 of 8 prompts x 4 rollouts pays for 27 in the first step, when all are expected to cost the same.
    run = options(wire, audit_log=True, prompt_id_column="name", learning_rate=1e-2, budget_fraction=0.85)
    run |= {"save_strategy": "steps", "save_steps": NUM_STEPS}
    wire.strike(ANSWERS, mortal.launch)
    script = str(Path(__file__).with_name("distributed_run.py"))
    done = forked([script, str(tiny_path), str(tmp_path), json.dumps(run)], env=process_environment(), processes=2)
    assert done.returncode == 0, done.stderr[-4000:]
    assert wire.struck.is_set()
    assert "The vLLM server was lost: " in done.stderr and "Waiting up to 240 s" in done.stderr

    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    for name in ("state", "weights", "samples", "plans"):
        assert first[name] == second[name], name
    assert first["state"]["step"] == NUM_STEPS == len(first["plans"])
    assert sum(first["plans"][0]) == 27  # one more on the first process than on the second
    history = json.loads((tmp_path / f"checkpoint-{NUM_STEPS}" / "trainer_state.json").read_text())["log_history"]
    differences, generated, num_tokens = (
        [entry[name] for entry in history if name in entry]
        for name in ("sampling/sampling_logp_difference/max", "duet/generated_tokens", "num_tokens")
    )
    # A server with the weights it started with would be far off after two steps at this learning rate.
    assert len(differences) == NUM_STEPS and max(differences) < 1e-3

    tokenizer, total = tiny_tokenizer(), 0
    for step, (plan, own, counted) in enumerate(zip(first["plans"], generated, num_tokens, strict=True), start=1):
        rows = pq.read_table(tmp_path / "duet_audit" / f"step_{step:06d}.parquet").to_pydict()
        assert sorted(Counter(rows["prompt"]).values()) == sorted(plan)
        assert sum(rows["length"]) == own
        total += own + sum(len(tokenizer(prompt).input_ids) for prompt in rows["prompt"])
        assert counted == total


def test_a_server_that_stays_away_ends_the_run_with_a_checkpoint_to_go_on_from(mortal, wire, tiny_path, tmp_path):
    run = options(wire, vllm_server_timeout=2, save_strategy="no")
    trainer = duet_trainer(tiny_path, tmp_path, callbacks=[Failure(wire)], **run)
    text = f"(?s)Training stopped: no healthy vLLM server at {wire.url} after 2 s.*state before it is in (.*)\\.$"
    with pytest.raises(RuntimeError, match=text) as stopped:
        trainer.train()
    done = trainer.state.global_step
    checkpoint = tmp_path / f"checkpoint-{done}"
    assert 1 <= done < NUM_STEPS and re.match(text, str(stopped.value)).group(1) == str(checkpoint)
    assert json.loads((checkpoint / "duet_state.json").read_text())["step"] == done

    mortal.start()
    resumed = duet_trainer(tiny_path, tmp_path, **run)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == NUM_STEPS == resumed.loop.num_steps
    assert max(logged(resumed, "sampling/sampling_logp_difference/max")) < 1e-3


def test_a_step_that_was_begun_on_a_killed_server_has_the_rollouts_of_the_weights_of_then(
    mortal, wire, tiny_path, tmp_path, caplog
):
    """All other steps but the first are one update behind."""
    trainer = duet_trainer(
        tiny_path, tmp_path, callbacks=[Failure(wire, mortal.launch)], **options(wire, overlap=True)
    )
    trainer.train()
    assert wire.struck.is_set() and caplog.text.count("The vLLM server was lost: ") == 1
    current = [value < 1e-3 for value in logged(trainer, "sampling/sampling_logp_difference/max")]
    assert len(current) == NUM_STEPS and current[0] and sum(current) == 2


def test_a_restart_between_two_batches_is_noticed_also_without_a_gate(mortal, tiny_path, tmp_path, caplog):
    """Requests without a gate cannot say which weights they mean; the base model would answer in the policy's name."""
    trainer = duet_trainer(tiny_path, tmp_path, method="grpo", learning_rate=1e-1, **options(mortal, max_steps=1))
    trainer.train()
    asked = (["Say 1 ", "Say 2 "], 2)
    trained = trainer.sample(*asked, temperature=0.0, max_tokens=20)
    mortal.kill()
    mortal.start()
    assert trainer.sample(*asked, temperature=0.0, max_tokens=20) == trained
    assert "was restarted, and has other weights" in caplog.text
