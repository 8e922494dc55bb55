# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/gate.py [--check]: what looking for the marker costs in each decode step.

1,024 running rollouts, the 131,072-token vocabulary that mistral_common ships. Alternately in one process:

* automaton: `StreamingGate.step`, all of the gate's work on every rollout at every step (one look-up in the marker's
  token table, polls, coins, grace window), on the CPU;
* text: every 8 tokens decode the last 256 and search a regular expression, which is how the published code polls.
  Rollouts are out of phase, so an average step polls 128 of them. The ratio is against this average; when all
  rollouts poll in the same step that step is eight times as long, and the other seven are free.

The decoder is the Rust one of `tokenizers` on the same vocabulary, one call per rollout. Joining the bytes of the
tokens in Python instead of decoding is timed too, for scale; no target depends on it. Not included on either side:
the entropy of rollouts in their grace window, writing the forced stop into the logits, admitting rollouts.
"""

import base64
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from importlib import resources

import numpy as np
from common import argument_parser, between, finish, spread
from tokenizers import Tokenizer, decoders, models

from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import MARKERS
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.streaming import StreamingGate
from duet_trl.gate.vocabulary import BYTE_OF_CHARACTER
from duet_trl.report.tables import text_table

NUM_ROLLOUTS = 1_024
POLL_INTERVAL = 8
TEXT_WINDOW = 256
ROUNDS = 15
STEPS_PER_ROUND = 64
MINIMUM_RATIO = 50.0
MAXIMUM_COMPILE_SECONDS = 0.5
# a box with up to two levels of braces in it, as the published code looks for
BOX = re.compile(r"\\boxed\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})+\}")
COMMON_TOKENS = 20_000
"""Tokens are drawn from the first of the vocabulary: the most frequent, hence short, hence cheap to decode."""


def tekken_vocabulary() -> list[bytes | None]:
    """Bytes of each of the 131,072 token ids; the first 1,000 are special."""
    file = json.loads(resources.files("mistral_common").joinpath("data/tekken_240911.json").read_text())
    size, special = file["config"]["default_vocab_size"], file["config"]["default_num_special_tokens"]
    return [None] * special + [base64.b64decode(entry["token_bytes"]) for entry in file["vocab"][: size - special]]


def decoder_of(vocabulary: list[bytes | None]) -> Callable[[list[int]], str]:
    """Decode with a byte-level fast tokenizer that has this vocabulary (decoding needs no merges)."""
    char_of = {byte: char for char, byte in BYTE_OF_CHARACTER.items()}
    spelled = {
        f"<special {number}>" if data is None else "".join(char_of[byte] for byte in data): number
        for number, data in enumerate(vocabulary)
    }
    tokenizer = Tokenizer(models.BPE(vocab=spelled, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.decode


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread: on a shared machine wall-clock would favour the shorter of two measurements."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def measure_steps(vocabulary: list[bytes | None], seed: int) -> dict[str, dict[str, float]]:
    """Microseconds of one decode step of each method, the methods taking turns."""
    rng = np.random.default_rng(seed)
    special = vocabulary.index(next(data for data in vocabulary if data is not None))
    tokens = rng.integers(special, COMMON_TOKENS, (STEPS_PER_ROUND, NUM_ROLLOUTS))
    histories = rng.integers(special, COMMON_TOKENS, (NUM_ROLLOUTS, 2 * TEXT_WINDOW)).tolist()
    automaton = compile_automaton(MARKERS["math"], vocabulary)
    decode, slots, states = decoder_of(vocabulary), np.arange(NUM_ROLLOUTS), np.zeros(NUM_ROLLOUTS, np.uint8)
    gate = StreamingGate(NUM_ROLLOUTS, [automaton])

    def text_step(to_text: Callable[[list[int]], str], phase: int, interval: int) -> None:
        for history in histories[phase::interval]:
            BOX.search(to_text(history[-TEXT_WINDOW:]))

    def join(ids: list[int]) -> str:
        return b"".join([vocabulary[token] for token in ids]).decode(errors="replace")

    samples: dict[str, list[float]] = {
        "automaton": [],
        "look-up alone": [],
        "decode": [],
        "join": [],
        "decode all": [],
    }
    for _ in range(ROUNDS):
        for slot in slots:  # lengths around K1, so that polls happen and no decision is past
            gate.admit(int(slot), GateSpec(64, 2_150, 150, POLL_INTERVAL), False, prefix=histories[slot][: slot % 64])
        samples["automaton"].append(seconds(lambda: [gate.step(slots, row) for row in tokens]) / len(tokens))
        samples["look-up alone"].append(
            seconds(lambda: [automaton.advance(states, row) for row in tokens]) / len(tokens)
        )
        for phase in range(POLL_INTERVAL):
            samples["decode"].append(seconds(lambda phase=phase: text_step(decode, phase, POLL_INTERVAL)))
            samples["join"].append(seconds(lambda phase=phase: text_step(join, phase, POLL_INTERVAL)))
        samples["decode all"].append(seconds(lambda: text_step(decode, 0, 1)))
    return {name: spread([1e6 * one for one in values]) for name, values in samples.items()}


def measure_tables(vocabulary: list[bytes | None]) -> dict[str, dict[str, float]]:
    """Compile each built-in marker; the median of three, each from scratch."""
    tables = {}
    for name, marker in MARKERS.items():
        compile_seconds = statistics.median(
            seconds(lambda m=marker: compile_automaton(m, vocabulary)) for _ in range(3)
        )
        automaton = compile_automaton(marker, vocabulary)
        tables[name] = {
            "states": len(automaton.table),
            "megabytes": automaton.table.nbytes / 1e6,
            "compile_seconds": compile_seconds,
        }
    return tables


def main() -> int:
    arguments = argument_parser(__doc__.splitlines()[0]).parse_args()
    vocabulary = tekken_vocabulary()
    tables = measure_tables(vocabulary)
    print(
        text_table(
            ["marker", "states", "table MB", "compile s"],
            [
                [name, t["states"], f"{t['megabytes']:.2f}", f"{t['compile_seconds']:.3f}"]
                for name, t in tables.items()
            ],
        )
    )
    steps = measure_steps(vocabulary, arguments.seed)
    ours = steps["automaton"]["median"]
    rows = {
        "automaton": "automaton and gate, every rollout every step",
        "look-up alone": "  the look-up alone",
        "decode": "decode 256 tokens + regex, 1/8 of the rollouts",
        "decode all": "decode 256 tokens + regex, all rollouts in one step",
        "join": "join 256 tokens' bytes + regex, 1/8 of the rollouts",
    }
    print(
        text_table(
            [f"{NUM_ROLLOUTS:,} rollouts, {len(vocabulary):,} tokens", "us per step (p10 to p90)", "ratio"],
            [
                [title, between(steps[name], ",.1f"), f"{steps[name]['median'] / ours:,.1f}"]
                for name, title in rows.items()
            ],
        )
    )
    ratio = steps["decode"]["median"] / ours
    slowest = max(table["compile_seconds"] for table in tables.values())
    met = {
        f"ratio to decoding {ratio:.0f} >= {MINIMUM_RATIO:.0f}": ratio >= MINIMUM_RATIO,
        f"slowest compile {slowest:.3f} s <= {MAXIMUM_COMPILE_SECONDS} s": slowest <= MAXIMUM_COMPILE_SECONDS,
    }
    payload = {"num_rollouts": NUM_ROLLOUTS, "vocab_size": len(vocabulary), "steps": steps, "tables": tables}
    return finish("gate", payload | {"ratio": ratio}, met, arguments, "numpy", "tokenizers", "mistral_common")


if __name__ == "__main__":
    sys.exit(main())
