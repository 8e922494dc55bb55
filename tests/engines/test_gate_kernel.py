# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of the device gate: interpreted on the CPU against its oracle, and compiled for a Hopper GPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.engines.device_gate import NEVER, WIDTH, Column, step_rows
from duet_trl.engines.host_gate import FORCED
from duet_trl.gate.automaton import compile_automaton
from tests.engines.test_device_gate import VOCABULARY, Engine, Rollout, automaton, device_gates, rollouts
from tests.gate.oracle import EOS, A, B, C, toy_marker

triton = pytest.importorskip("triton")

NUM_SLOTS, HISTORY, NUM_TOKENS = 6, 24, 9
LONGER = compile_automaton(toy_marker("abcb"), VOCABULARY)
TABLES = torch.from_numpy(np.concatenate([automaton("toy").table, LONGER.table]))
OTHER_TABLE = len(automaton("toy").table)
TILE = 4_096  # logits that the kernel reads at once


def random_rows(random: np.random.Generator) -> torch.Tensor:
    """Slots in the middle of their rollouts, some without a gate, some refused."""
    size = NUM_SLOTS
    length = random.integers(0, 12, size)
    tau = np.where(random.random(size) < 0.4, NEVER, np.maximum(length + random.integers(-8, 4, size), 1))
    columns = {
        Column.GATED: random.random(size) < 0.85,
        Column.SENTINEL: 5,
        Column.PROMPT_LEN: random.choice([1, 3, NEVER], p=[0.45, 0.45, 0.1], size=size),
        Column.TABLE_ROW: random.choice([0, OTHER_TABLE], size=size),
        Column.POLL_THRESHOLD: random.choice([1, 6, NEVER], p=[0.6, 0.3, 0.1], size=size),
        Column.POLL_INTERVAL: random.choice([1, 3, NEVER], p=[0.4, 0.5, 0.1], size=size),
        Column.ABORT_AT: length + random.integers(0, 9, size),
        Column.GRACE_WINDOW: random.choice([0, 2, 9, NEVER - 1], size=size),
        Column.WINDOW: random.choice([1, 3, NEVER], size=size),
        Column.MISSED_STOP_AT: np.where(random.random(size) < 0.5, NEVER, length + random.integers(0, 4, size)),
        Column.ENTROPY_THRESHOLD: np.float32(1.5).view(np.int32) * (random.random(size) < 0.5),
        Column.STATE: random.integers(0, OTHER_TABLE, size),
        Column.LENGTH: length,
        Column.TAU: tau,
    }
    rows = torch.zeros(size, WIDTH, dtype=torch.int32)
    for column, values in columns.items():
        rows[:, column] = torch.from_numpy(np.broadcast_to(np.asarray(values, np.int32), size).copy())
    rows[:, Column.EOS_IDS :] = -1
    rows[:, Column.EOS_IDS : Column.EOS_IDS + 3] = torch.tensor([3, 7, 10**9])
    return rows


def random_logits(random: np.random.Generator, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Peaked and flat rows, largest values that tie, tokens that are forbidden."""
    logits = torch.from_numpy(random.normal(size=(num_rows, vocab_size)).astype(np.float32))
    likeliest = random.choice([3, 7, 2, vocab_size - 1], size=num_rows)  # the first two end a rollout
    logits[np.arange(num_rows), likeliest] += torch.from_numpy(random.choice([0.0, 12.0], size=num_rows)).float()
    if random.random() < 0.5:
        logits[:, 0] = logits.amax(dim=1)
    if random.random() < 0.3:
        logits[:, 8::2] = -torch.inf
    return logits


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([NUM_TOKENS, NUM_TOKENS, TILE, 2 * TILE + 385]))
def kernel_is_its_oracle_on_any_batch(seed, vocab_size):
    from duet_trl.engines.gate_kernel import launch_step

    random = np.random.default_rng(seed)
    slots = torch.from_numpy(random.permutation(NUM_SLOTS)[: random.integers(1, NUM_SLOTS + 1)].astype(np.int32))
    rows = random_rows(random)
    often = [-1, *[A, B] * 4, C, EOS, NUM_TOKENS]  # markers complete, and unknown tokens are met
    tokens = torch.from_numpy(random.choice(often, (NUM_SLOTS, HISTORY)).astype(np.int32))
    logits = random_logits(random, len(slots), vocab_size)
    pos = rows[slots.long(), Column.LENGTH] + torch.from_numpy(random.integers(-2, 7, len(slots)))
    pos = pos.clamp(min=0, max=HISTORY - 1)
    newest = torch.from_numpy(random.integers(0, 3, len(slots)).astype(np.int32))
    expected_rows, expected = rows.clone(), logits.clone()
    step_rows(expected_rows, TABLES, expected, slots, pos, newest, tokens)
    launch_step(rows, TABLES, logits, slots, pos, newest, tokens)
    assert torch.equal(rows, expected_rows)
    assert torch.equal(logits, expected)


@settings(max_examples=5, deadline=None)
@given(st.lists(rollouts(), min_size=2, max_size=4), st.integers(0, 2**32))
def device_gate_takes_the_kernel_where_triton_interprets(batch: list[Rollout], seed):
    gates = device_gates()
    Engine(gates, seed).run(list(batch))
    assert [(rollout.ids, rollout.stopped) for rollout in batch] == [rollout.expected() for rollout in batch]
    assert "duet_trl.engines.gate_kernel" in sys.modules


def certainty_is_exact_to_a_hundred_thousandth():
    for scale in (0.5, 5.0):
        for offset in (0.0, 1e3):
            certainty_is_exact(scale, offset)


def certainty_is_exact(scale: float, offset: float) -> None:
    """A threshold a hundred-thousandth to either side of the entropy decides either way."""
    from duet_trl.engines.gate_kernel import launch_step

    random = np.random.default_rng(0)
    vocab_size = 2 * TILE + 385
    row = (random.normal(size=vocab_size) * scale + offset).astype(np.float32)
    row[-1] = row.max() + np.float32(scale)  # the largest is in the incomplete last tile
    probabilities = torch.softmax(torch.from_numpy(row).double(), dim=0)
    entropy = torch.special.entr(probabilities).sum()
    for sign in (1, -1):  # a threshold above the entropy stops, one below it does not
        rows = torch.zeros(1, WIDTH, dtype=torch.int32)
        rows[0, [Column.GATED, Column.PROMPT_LEN, Column.GRACE_WINDOW]] = torch.tensor([1, 1, NEVER - 1]).int()
        rows[0, Column.EOS_IDS :] = -1
        rows[0, Column.ENTROPY_THRESHOLD] = (entropy * (1 + 1e-5 * sign)).float().view(torch.int32)
        logits = torch.from_numpy(row.copy())[None]
        zero = torch.zeros(1, dtype=torch.int32)
        launch_step(rows, TABLES, logits, zero, zero, zero, zero[None])
        assert logits[0, 0] == (FORCED if sign == 1 else -torch.inf), sign


CHECKS = {
    check.__name__: check
    for check in (
        kernel_is_its_oracle_on_any_batch,
        device_gate_takes_the_kernel_where_triton_interprets,
        certainty_is_exact_to_a_hundred_thousandth,
    )
}


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(check):
    """In a process of its own: whether Triton interprets is settled when it is imported."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.engines.test_gate_kernel", check],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_kernel_compiles_for_a_hopper_gpu_with_loads_in_flight_and_little_shared_memory(tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from duet_trl.engines import gate_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = {"logits": "fp32", "rows": "i32", "tables": "u8", "slots": "i32", "pos": "i64", "input_ids": "i32"}
    types = {f"{name}_ptr": f"*{kind}" for name, kind in {**pointers, "all_token_ids": "i32"}.items()}
    constants = {"TILE": gate_kernel.TILE, "LANES": gate_kernel.LANES, "STAGES": gate_kernel.STAGES}
    names = gate_kernel.step_kernel.arg_names
    signature = {name: types.get(name, "constexpr" if name in constants else "i32") for name in names}
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(names) - len(constants))}
    source = ASTSource(gate_kernel.step_kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": gate_kernel.NUM_WARPS})
    assert "cp.async.cg.shared.global" in compiled.asm["ptx"]  # 16 bytes a thread, past the registers
    assert compiled.metadata.shared <= 48 * 1024 and compiled.asm["cubin"]  # four programs fit a multiprocessor


if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
