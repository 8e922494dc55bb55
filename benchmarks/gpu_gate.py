# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/gpu_gate.py [--check]: the gate of vLLM's V2 runner on the GPU, one decode step of 1,024 rollouts.

A vocabulary of 151,936 tokens, every row gated, each step consumes one token per row. Armed rows are those in their
grace window whose request trims by certainty: only they read their logits. The main case has 1% of them, ten rows:
with the entropy threshold of `duet` an answered rollout waits a few tokens for a nearly certain one, out of
a thousand. 15% is what a grace window of 150 tokens without any certain token would give.

* time: CUDA events around each step, the kernel and the plain-torch oracle in alternation, the caches flushed before
  every step as a model's forward pass leaves them. Median of the steps of each repeat; the table shows the median and
  the range over the repeats. Next to it, the host's time to launch a step.
* launches: what the profiler sees on the device during one step; not checked where it sees nothing.
* agreement: on a live load of random requests (preemption, slots used again, two markers, every switch, rows without a
  gate) all state and all logits after the kernel's step equal those after the oracle's, 10^6 rows. Where the figure
  lies within 1e-4 of its threshold rounding may decide; such rows are counted apart.

Without a GPU the oracle is timed on CPU tensors and the kernel compared with it under Triton's interpreter, on a few
thousand rows of a small vocabulary; no target can be checked then.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import argument_parser, finish

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

from duet_trl.engines.device_gate import NEVER, Column, DeviceGates, step_rows  # noqa: E402
from duet_trl.engines.gate_kernel import launch_step  # noqa: E402
from duet_trl.engines.host_gate import next_token_entropy  # noqa: E402
from duet_trl.gate.automaton import compile_automaton  # noqa: E402
from duet_trl.gate.markers import get_marker  # noqa: E402
from duet_trl.gate.replay import GateSpec  # noqa: E402
from duet_trl.gate.streaming import GateRequest  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
NUM_ROWS, VOCAB_SIZE, PROMPT_LEN = 1_024, 151_936, 16
REPEATS = 9
STEPS = {"kernel": 50, "torch": 20} if CUDA else {"torch": 1}
CASES = {
    "none armed": (0.0, {"entropy_threshold": 0.1}),
    "1% armed": (0.01, {"entropy_threshold": 0.1}),
    "15% armed": (0.15, {"entropy_threshold": 0.1}),
}
MAIN = "1% armed"
MAXIMUM_US, MAXIMUM_LAUNCHES = 20.0, 2
AGREEMENT_ROWS, AGREEMENT_BATCH, AGREEMENT_VOCAB = (10**6, NUM_ROWS, VOCAB_SIZE) if CUDA else (3_000, 64, 5_000)
ROUNDING = 1e-4
SENTINEL, EOS, ANSWER = 0, 1, 2
SPECIAL = [None, None, rb"so \boxed{42}"]


def vocabulary(size: int, rng: np.random.Generator) -> list[bytes | None]:
    """Two special tokens, one that completes the marker of `math`, and strings of one to eight printable bytes."""
    lengths = rng.integers(1, 9, size)
    return SPECIAL + [bytes(rng.integers(32, 127, length).tolist()) for length in lengths[len(SPECIAL) :]]


@dataclass
class Batch:
    """What a step takes besides the state: `DeviceGates.apply` names and explains it."""

    logits: torch.Tensor
    slots: torch.Tensor
    pos: torch.Tensor
    input_ids: torch.Tensor
    all_token_ids: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.logits, self.slots, self.pos, self.input_ids, self.all_token_ids


class SteadyLoad:
    """Running rollouts of one length, a share of them armed for good."""

    def __init__(self, vocab: list[bytes | None], share: float, thresholds: dict[str, float], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.gates, automaton = DeviceGates(NUM_ROWS, DEVICE), compile_automaton(get_marker("math"), vocab)
        tokens = rng.integers(len(SPECIAL), VOCAB_SIZE, (NUM_ROWS, 2_048), dtype=np.int32)
        armed = rng.permutation(NUM_ROWS)[: round(share * NUM_ROWS)]
        tokens[armed, PROMPT_LEN + 4] = ANSWER
        spec = GateSpec(8, 10**6, 10**6, poll_interval=8, window=None, **thresholds)
        request = GateRequest(spec, False, "math", SENTINEL, frozenset({EOS}))
        for slot in range(NUM_ROWS):
            self.gates.admit(slot, request, automaton, PROMPT_LEN)
        self.gates.flush()
        self.rng, self.length = rng, PROMPT_LEN + 64
        self.tokens = torch.from_numpy(tokens).to(DEVICE)
        self.logits = torch.randn(NUM_ROWS, VOCAB_SIZE, device=DEVICE)
        self.on_host = np.arange(NUM_ROWS)
        self.oracle(self.next_batch())  # reads what the rollouts have so far

    def next_batch(self) -> Batch:
        """One more token everywhere, the rows in another order, so that other logits are read."""
        slots = torch.from_numpy(self.rng.permutation(NUM_ROWS).astype(np.int32)).to(DEVICE)
        pos = torch.full((NUM_ROWS,), self.length, device=DEVICE)
        newest = self.tokens[:, self.length][slots.long()]
        self.length += 1
        return Batch(self.logits, slots, pos, newest, self.tokens)

    def apply(self, batch: Batch) -> None:
        logits, slots, *rest = batch.arguments()
        self.gates.apply(logits, slots, self.on_host, *rest)

    def oracle(self, batch: Batch) -> None:
        step_rows(self.gates.rows, self.gates.tables, *batch.arguments())


def time_step(step: Callable[[Batch], None], batch: Batch, flush: torch.Tensor) -> tuple[float, float]:
    """Seconds of one step on the device, caches cold, and of its launch on the host; both the same without a GPU."""
    if not CUDA:
        begin = time.perf_counter()
        step(batch)
        return (time.perf_counter() - begin,) * 2
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    for _ in range(4):  # the device is busy with it while the host prepares the step, which so starts without a gap
        flush.zero_()
    begin.record()
    host = time.perf_counter()
    step(batch)
    host = time.perf_counter() - host
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, host


def measure(load: SteadyLoad) -> dict[str, dict[str, float]]:
    """Both paths in alternation on one load, in microseconds."""
    steps = {"kernel": load.apply, "torch": load.oracle}
    flush = torch.empty(2**28 if CUDA else 0, dtype=torch.uint8, device=DEVICE)
    for name in STEPS:  # compiles
        steps[name](load.next_batch())
    device: dict[str, list[float]] = {name: [] for name in STEPS}
    host: dict[str, list[float]] = {name: [] for name in STEPS}
    for _ in range(REPEATS):
        for name, count in STEPS.items():
            seconds = [time_step(steps[name], load.next_batch(), flush) for _ in range(count)]
            device[name].append(statistics.median(s[0] for s in seconds) * 1e6)
            host[name].append(statistics.median(s[1] for s in seconds) * 1e6)
    return {
        name: {
            "median_us": statistics.median(device[name]),
            "least_us": min(device[name]),
            "most_us": max(device[name]),
            "host_median_us": statistics.median(host[name]),
        }
        for name in STEPS
    }


def count_launches(load: SteadyLoad) -> int | None:
    """Kernels, copies and fills on the device during one step; None if the profiler sees nothing of the device."""
    for _ in range(2):  # the first start of the profiler may miss some
        batch = load.next_batch()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            load.apply(batch)
            torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events()) or None


class LiveLoad:
    """Random requests that come, are preempted, return and end."""

    def __init__(self, vocab: list[bytes | None], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.gates = DeviceGates(AGREEMENT_BATCH, DEVICE)
        self.automata = {name: compile_automaton(get_marker(name), vocab) for name in ("math", "code")}
        self.tokens = np.zeros((AGREEMENT_BATCH, 512), dtype=np.int32)
        self.tokens_on_device = torch.zeros(self.tokens.shape, dtype=torch.int32, device=DEVICE)
        self.length = np.zeros(AGREEMENT_BATCH, dtype=np.int64)  # tokens known, the prompt among them
        self.requests: list[GateRequest | None] = [None] * AGREEMENT_BATCH
        self.generator = torch.Generator(DEVICE).manual_seed(seed)
        for slot in range(AGREEMENT_BATCH):
            self.replace(slot)

    def request(self) -> GateRequest | None:
        rng = self.rng
        if rng.random() < 0.1:
            return None
        first = int(rng.integers(1, 64))
        spec = GateSpec(
            first,
            first + int(rng.integers(0, 128)),
            int(rng.integers(0, 64)),
            int(rng.integers(1, 10)),
            trim=rng.random() < 0.9,
            abort=rng.random() < 0.8,
            entropy_threshold=float(rng.choice([0.0, rng.uniform(0, 3)])),
            window=None if rng.random() < 0.5 else int(rng.integers(1, 64)),
        )
        marker = str(rng.choice([*self.automata]))
        return GateRequest(spec, bool(rng.random() < 0.3), marker, SENTINEL, frozenset({EOS}))

    def replace(self, slot: int, resume: bool = False) -> None:
        """A new request in this slot, or the same again as after a preemption."""
        if not resume:
            self.requests[slot], self.length[slot] = self.request(), PROMPT_LEN
        request = self.requests[slot]
        if request is None:
            self.gates.drop(slot)
        else:
            self.gates.admit(slot, request, self.automata[request.marker], PROMPT_LEN)

    def next_batch(self) -> Batch:
        rng, everyone = self.rng, np.arange(AGREEMENT_BATCH)
        ended = (rng.random(AGREEMENT_BATCH) < 0.02) | (self.length >= self.tokens.shape[1])
        for slot in np.flatnonzero(ended | (rng.random(AGREEMENT_BATCH) < 0.01)):
            self.replace(int(slot), resume=not ended[slot])
        self.gates.flush()
        newest = rng.integers(len(SPECIAL), VOCAB_SIZE if CUDA else AGREEMENT_VOCAB, AGREEMENT_BATCH)
        newest[rng.random(AGREEMENT_BATCH) < 0.03] = ANSWER
        self.tokens[everyone, self.length] = newest
        slots = rng.permutation(AGREEMENT_BATCH)
        self.tokens_on_device.copy_(torch.from_numpy(self.tokens))
        pos = torch.from_numpy(self.length[slots]).to(DEVICE)
        input_ids = torch.from_numpy(newest[slots].astype(np.int32)).to(DEVICE)
        self.length += 1
        return Batch(
            self.random_logits(),
            torch.from_numpy(slots.astype(np.int32)).to(DEVICE),
            pos,
            input_ids,
            self.tokens_on_device,
        )

    def random_logits(self) -> torch.Tensor:
        """From flat to nearly certain, some about to end by themselves, some tokens forbidden."""
        shape, options = (AGREEMENT_BATCH, AGREEMENT_VOCAB), {"device": DEVICE, "generator": self.generator}
        logits = torch.randn(shape, **options) * (torch.rand((shape[0], 1), **options) * 12)
        logits[:, EOS] += torch.where(torch.rand(shape[0], **options) < 0.1, 60.0, 0.0)
        logits[:, 7] = -torch.inf
        return logits


def agreement(vocab: list[bytes | None], seed: int) -> dict[str, int]:
    """Rows on which kernel and oracle agree, and what they decided."""
    load = LiveLoad(vocab, seed)
    counts = dict.fromkeys(
        ("rows", "gated", "read_logits", "forced", "forced_by_certainty", "by_rounding", "wrong"), 0
    )
    while counts["rows"] < AGREEMENT_ROWS:
        batch = load.next_batch()
        rows, logits, slots = load.gates.rows.clone(), batch.logits.clone(), batch.slots.long()
        step_rows(rows, load.gates.tables, logits, *batch.arguments()[1:])
        untouched = batch.logits.clone()
        launch_step(load.gates.rows, load.gates.tables, *batch.arguments())
        after = rows[slots]
        gated = after[:, Column.GATED] > 0
        length, tau = after[:, Column.LENGTH], after[:, Column.TAU]
        stop_at = torch.where(tau < NEVER, tau + after[:, Column.GRACE_WINDOW], after[:, Column.MISSED_STOP_AT])
        due = length >= stop_at
        thresholds = after[:, Column.ENTROPY_THRESHOLD].contiguous().view(torch.float32)
        forced = gated & (logits[:, SENTINEL] > 0)
        differs = (logits != batch.logits).any(dim=1)
        rounded = differs & decided_by_rounding(untouched, thresholds) if differs.any() else differs
        wrong = (differs & ~rounded) | (rows != load.gates.rows)[slots].any(dim=1)
        for name, flags in {
            "rows": torch.ones_like(gated),
            "gated": gated,
            "read_logits": gated & (thresholds > 0) & (tau <= length) & ~due,
            "forced": forced,
            "forced_by_certainty": forced & ~due,
            "by_rounding": rounded & ~wrong,
            "wrong": wrong,
        }.items():
            counts[name] += int(flags.sum())
    return counts


def decided_by_rounding(logits: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """Rows whose entropy is so near its threshold that the order of summation decides, shape (B,), bool."""
    return ((next_token_entropy(logits) - thresholds).abs() < ROUNDING) & (thresholds > 0)


def main() -> int:
    arguments = argument_parser(__doc__.splitlines()[0]).parse_args()
    device = torch.cuda.get_device_name() if CUDA else "CPU tensors, no GPU"
    rng = np.random.default_rng(arguments.seed)
    torch.manual_seed(arguments.seed)
    vocab = vocabulary(VOCAB_SIZE, rng)
    figures, launches = {}, None
    for name, (share, thresholds) in CASES.items():
        load = SteadyLoad(vocab, share, thresholds, arguments.seed)
        figures[name] = measure(load)
        if CUDA and name == MAIN:
            launches = count_launches(load)
        del load
    print_times(figures, device)
    agreed = agreement(vocab[:AGREEMENT_VOCAB], arguments.seed)
    print(text_table(("agreement of kernel and oracle", "rows"), list(agreed.items())))
    checks = {"kernel and oracle agree on every row": agreed["wrong"] == 0}
    if CUDA:
        checks[f"{MAIN}: at most {MAXIMUM_US:.0f} us a step"] = figures[MAIN]["kernel"]["median_us"] <= MAXIMUM_US
        print(f"\nlaunches a step: {launches or 'not counted, the profiler saw none'}")
        if launches is not None:
            checks[f"at most {MAXIMUM_LAUNCHES} launches a step"] = launches <= MAXIMUM_LAUNCHES
    else:
        print(
            "\nNo GPU: the oracle was timed on CPU tensors and the kernel ran under Triton's interpreter, untimed. "
            f"Time (at most {MAXIMUM_US:.0f} us) and launches (at most {MAXIMUM_LAUNCHES}) were NOT checked."
        )
    payload = {
        "device": device,
        "measured_on_gpu": CUDA,
        "main_case": MAIN,
        "times": figures,
        "launches": launches,
        "agreement": agreed,
        "settings": {"num_rows": NUM_ROWS, "vocab_size": VOCAB_SIZE, "repeats": REPEATS, "steps": STEPS},
    }
    return finish("gpu_gate", payload, checks, arguments, "torch", "triton", "numpy")


def print_times(figures: dict[str, dict[str, dict[str, float]]], device: str) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            case,
            path,
            f"{times['median_us']:,.1f}",
            f"{times['least_us']:,.1f}-{times['most_us']:,.1f}",
            f"{times['host_median_us']:,.1f}",
        )
        for case, paths in figures.items()
        for path, times in paths.items()
    ]
    title = f"{NUM_ROWS:,} rows x {VOCAB_SIZE:,} logits, {device}"
    print(text_table((title, "path", "us per step", "range", "host, us"), rows))
    print()


if __name__ == "__main__":
    sys.exit(main())
