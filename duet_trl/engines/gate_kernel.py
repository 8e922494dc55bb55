# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN001, ANN202 -- Triton reads annotations of kernel arguments as its own types
"""One step of the device gate as one Triton kernel: `device_gate.step_rows` without a synchronisation.

One program per row of the logits. Its scalar part, which is all that most rows need, is a chain of three loads (slot,
row of the slot, entry of the automaton). A row in its grace window whose request trims by certainty also reads its
logits, once. Rows whose stop is due anyway read none.
"""

import triton
import triton.language as tl

from ..gate.automaton import STATE_BITS
from ..gate.dfa import COMPLETED
from ..gate.streaming import MAX_EOS_IDS
from .device_gate import NEVER, WIDTH, Column
from .host_gate import FORCED

NUM_WARPS = 8
LANES = 1_024
"""Columns of a tile of logits: 16 bytes for each thread, so that the sums down a column stay within the thread."""
TILE = 4
"""Rows of a tile."""
STAGES = 4
"""Tiles of 16 KB a program works on or waits for. One multiprocessor can have four programs, by this shared memory and
by their registers, and a single program has enough bytes on their way to hide the latency of the memory."""

_WIDTH = tl.constexpr(int(WIDTH))
(_GATED, _SENTINEL, _PROMPT_LEN, _TABLE_ROW, _POLL_THRESHOLD, _POLL_INTERVAL, _ABORT_AT, _GRACE_WINDOW, _WINDOW) = (
    tl.constexpr(int(column)) for column in list(Column)[:9]
)
(_MISSED_STOP_AT, _ENTROPY_THRESHOLD, _STATE, _LENGTH, _TAU, _SLOT, _EOS_IDS) = (
    tl.constexpr(int(column)) for column in list(Column)[9:]
)
_NEVER = tl.constexpr(NEVER)
_NUM_EOS_IDS = tl.constexpr(MAX_EOS_IDS)
_COMPLETED = tl.constexpr(COMPLETED)
_STATE_BITS = tl.constexpr(STATE_BITS)
_FORCED = tl.constexpr(FORCED)
_FORBIDDEN = tl.constexpr(float("-inf"))
_LOWEST = tl.constexpr(-1e30)
"""Stands for -inf in sums: its weight is 0 next to any real logit, and 0 times it is 0."""


def launch_step(rows, tables, logits, slots, pos, input_ids, all_token_ids) -> None:
    """One step of the gate for a batch; arguments as `device_gate.step_rows`, the last dimensions contiguous."""
    step_kernel[(logits.shape[0],)](
        logits,
        logits.stride(0),
        logits.shape[1],
        rows,
        tables,
        tables.shape[1],
        slots,
        pos,
        input_ids,
        all_token_ids,
        all_token_ids.stride(0),
        TILE=TILE,
        LANES=LANES,
        STAGES=STAGES,
        num_warps=NUM_WARPS,
    )


@triton.jit
def step_kernel(
    logits_ptr,
    logits_stride,
    vocab_size,
    rows_ptr,
    tables_ptr,
    num_tokens,
    slots_ptr,
    pos_ptr,
    input_ids_ptr,
    all_token_ids_ptr,
    all_token_ids_stride,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """The program of one row of the logits."""
    index = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + index).to(tl.int64)
    newest = tl.load(input_ids_ptr + index).to(tl.int32)
    pos = tl.load(pos_ptr + index).to(tl.int32)
    row = rows_ptr + slot * _WIDTH
    if tl.load(row + _GATED) == 0:
        return
    prompt_len = tl.load(row + _PROMPT_LEN)
    history = all_token_ids_ptr + slot * all_token_ids_stride + prompt_len
    table = tables_ptr + tl.load(row + _TABLE_ROW).to(tl.int64) * num_tokens
    sentinel = tl.load(row + _SENTINEL)
    entropy_threshold = tl.load(row + _ENTROPY_THRESHOLD).to(tl.float32, bitcast=True)
    length, tau = _consume(row, history, newest, pos + 1 - prompt_len, table, num_tokens)
    stop_at = tl.where(tau < _NEVER, tau + tl.load(row + _GRACE_WINDOW), tl.load(row + _MISSED_STOP_AT))

    logits = logits_ptr + index * logits_stride
    stop = length >= stop_at
    if (entropy_threshold > 0.0) & (tau <= length) & (length < stop_at):
        stop = _nearly_certain(logits, vocab_size, row + _EOS_IDS, entropy_threshold, TILE, LANES, STAGES)
    tl.debug_barrier()  # every warp has read the logits
    tl.store(logits + sentinel, tl.where(stop, _FORCED, _FORBIDDEN))


@triton.jit
def _consume(row, history, newest, target, table, num_tokens):
    """Read the tokens up to `target` that a slot has not seen, `newest` last; its new state."""
    poll_threshold = tl.load(row + _POLL_THRESHOLD)
    poll_interval = tl.load(row + _POLL_INTERVAL)
    abort_at = tl.load(row + _ABORT_AT)
    window = tl.load(row + _WINDOW)
    state = tl.load(row + _STATE)
    length = tl.load(row + _LENGTH)
    tau = tl.load(row + _TAU)
    while length < target:
        token = tl.load(history + length, mask=length + 1 < target, other=0).to(tl.int32)
        token = tl.where(length + 1 < target, token, newest)
        known = (token >= 0) & (token < num_tokens)
        entry = tl.load(table + state.to(tl.int64) * num_tokens + token, mask=known, other=0).to(tl.int32)
        entry = tl.where(known, entry, state)  # an unknown token is not read
        state = entry & _STATE_BITS
        length += 1
        if (entry >= _COMPLETED) & (tau >= _NEVER):  # `replay.first_poll_that_sees`
            earliest = tl.maximum(length, poll_threshold)
            poll = tl.minimum((earliest + (poll_interval - 1)) // poll_interval * poll_interval, abort_at)
            tau = tl.where((earliest <= abort_at) & (poll - length < window), poll, tau)

    tl.debug_barrier()  # every warp has read what is overwritten now
    tl.store(row + _STATE, state)
    tl.store(row + _LENGTH, length)
    tl.store(row + _TAU, tau)
    return length, tau


@triton.jit
def _nearly_certain(
    logits, vocab_size, eos_ids, entropy_threshold, TILE: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr
):
    """Whether the next token is nearly certain, and no EOS is the likeliest; one pass over a row of logits."""
    offsets = tl.arange(0, TILE)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    peak = tl.full([LANES], _LOWEST, tl.float32)
    mass = tl.zeros([LANES], tl.float32)
    moment = tl.zeros([LANES], tl.float32)
    full = vocab_size // (TILE * LANES) * (TILE * LANES)
    for begin in tl.range(0, full, TILE * LANES, num_stages=STAGES):
        peak, mass, moment = _add_tile(tl.load(logits + begin + offsets), peak, mass, moment)
    rest = tl.load(logits + full + offsets, mask=full + offsets < vocab_size, other=_FORBIDDEN)
    peak, mass, moment = _add_tile(rest, peak, mass, moment)

    top = tl.max(peak, axis=0)
    weight = tl.exp(peak - top)
    total = tl.sum(weight * mass, axis=0)
    mean = tl.sum(weight * (moment + (peak - top) * mass), axis=0) / total
    certain = tl.log(total) - mean < entropy_threshold
    eos = tl.load(eos_ids + tl.arange(0, _NUM_EOS_IDS))
    ends = tl.load(logits + eos, mask=(eos >= 0) & (eos < vocab_size), other=_FORBIDDEN) >= top
    return certain & (tl.sum(ends.to(tl.int32), axis=0) == 0)


@triton.jit
def _add_tile(tile, peak, mass, moment):
    """Running maximum m, sum of e^(x - m) and sum of (x - m) e^(x - m) of each column, with one more tile."""
    tile = tl.maximum(tile, _LOWEST)
    top = tl.maximum(peak, tl.max(tile, axis=0))
    lag = peak - top
    shrink = tl.exp(lag)
    below = tile - top[None, :]
    weight = tl.exp(below)
    moment = shrink * (moment + lag * mass) + tl.sum(below * weight, axis=0)
    mass = shrink * mass + tl.sum(weight, axis=0)
    return top, mass, moment
