# SPDX-License-Identifier: Apache-2.0
"""The gate with its state on the device of the logits, for runners whose tokens never reach the host.

The semantics are those of `streaming.py` and `host_gate.py`. The state of a slot is one row of integers, a function of
the request and the tokens it has generated; a step consumes the tokens that the row has not seen yet and writes one
logit. So decoding, a chunked prefill and a resumed request, which is admitted again with nothing consumed, are one
path. The Triton kernel of `gate_kernel.py` takes it on a GPU, `step_rows` here, its oracle in plain torch, on a CPU.
"""

import os
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import torch

from ..gate.automaton import STATE_BITS, TokenAutomaton
from ..gate.dfa import COMPLETED
from ..gate.replay import round_up
from ..gate.streaming import MAX_EOS_IDS, GateRequest
from .host_gate import FORCED, nearly_certain, padded

NEVER = 2**30
"""A token count no rollout reaches. Counts on the device are clamped to it, so that sums of two fit in int32."""


class Column(IntEnum):
    """Columns of a slot's row, int32. The entropy threshold is a float32 by its bits."""

    # what the request asks for
    GATED = 0
    SENTINEL = 1
    PROMPT_LEN = 2
    TABLE_ROW = 3  # of its automaton's first state in the joined tables
    POLL_THRESHOLD = 4
    POLL_INTERVAL = 5
    ABORT_AT = 6
    GRACE_WINDOW = 7  # NEVER - 1 where trim is off
    WINDOW = 8
    MISSED_STOP_AT = 9  # where the next token is a forced stop if no poll sees a marker
    ENTROPY_THRESHOLD = 10  # 0 where the grace window does not end by it
    # what its tokens did
    STATE = 11  # of the automaton
    LENGTH = 12  # t, tokens consumed
    TAU = 13  # length of the poll that sees, or will see, a marker
    # where the row goes when it is uploaded
    SLOT = 14
    EOS_IDS = 32  # the first of MAX_EOS_IDS, padded with -1


WIDTH = Column.EOS_IDS + MAX_EOS_IDS
_RUNNING = slice(Column.STATE, Column.TAU + 1)
_FLOAT32 = np.finfo(np.float32)


class DeviceGates:
    """The gated requests of a batch, by slot, with all state that changes from step to step on the device.

    Attributes:
        rows (torch.Tensor): Request and state of each slot, shape (num_slots, WIDTH), int32.
        tables (torch.Tensor): Joined tables of the prepared markers, shape (S, V), uint8.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.rows = torch.zeros(num_slots, WIDTH, dtype=torch.int32, device=device)
        self.tables = torch.zeros(0, 0, dtype=torch.uint8, device=device)
        self._table_rows: dict[TokenAutomaton, int] = {}
        self._gated = np.zeros(num_slots, dtype=bool)
        self._staged: dict[int, np.ndarray] = {}
        self._step = _choose_step(self.rows.device)

    def add_automaton(self, automaton: TokenAutomaton) -> int:
        """Make a marker available over the same vocabulary as the others, once; the first row of its table."""
        if automaton not in self._table_rows:
            self._table_rows[automaton] = self.tables.shape[0]
            table = torch.from_numpy(automaton.table.copy()).to(self.tables.device)
            self.tables = torch.cat([self.tables.reshape(-1, automaton.num_tokens), table])
        return self._table_rows[automaton]

    def warm_up(self, vocab_size: int, all_token_ids: torch.Tensor) -> None:
        """Compile the kernel, so that the first request does not wait for it: one step of an empty slot."""
        zero = torch.zeros(1, dtype=torch.int32, device=self.rows.device)
        logits = torch.zeros(1, vocab_size, device=self.rows.device)
        self._step(self.rows, self.tables, logits, zero, zero.long(), zero, all_token_ids)

    def admit(self, slot: int, request: GateRequest, automaton: TokenAutomaton, prompt_len: int) -> None:
        """Put a request into a slot at the next `flush`; the next `apply` reads what it has generated so far.

        `prompt_len` counts the tokens that the rollout continues as well.
        """
        row = _request_row(request)
        row[Column.PROMPT_LEN] = prompt_len - request.prefix_length
        row[Column.TABLE_ROW] = self.add_automaton(automaton)
        row[Column.STATE] = automaton.first_state(request.in_thought)
        self._stage(slot, row)

    def refuse(self, slot: int, sentinel: int) -> None:
        """Put a request that cannot be served as asked into a slot: its first token is the forced stop."""
        row = np.zeros(WIDTH, dtype=np.int32)
        row[[Column.GATED, Column.SENTINEL, Column.POLL_INTERVAL]] = True, sentinel, 1
        row[[Column.PROMPT_LEN, Column.TAU]] = NEVER  # so that nothing is consumed
        self._stage(slot, row)

    def drop(self, slot: int) -> None:
        """Empty a slot at the next `flush`."""
        if self._gated[slot]:
            self._stage(slot, np.zeros(WIDTH, dtype=np.int32))

    def _stage(self, slot: int, row: np.ndarray) -> None:
        row[Column.SLOT] = slot
        self._staged[slot] = row
        self._gated[slot] = bool(row[Column.GATED])

    def flush(self) -> None:
        """Upload the rows of all slots admitted, refused or dropped since the last call: one copy, no waiting."""
        if not self._staged:
            return
        rows = torch.from_numpy(np.stack(list(self._staged.values())))
        self._staged.clear()
        if self.rows.is_cuda:
            rows = rows.pin_memory().to(self.rows.device, non_blocking=True)
        self.rows.index_copy_(0, rows[:, Column.SLOT].long(), rows)

    def apply(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        slots_on_host: np.ndarray,
        pos: torch.Tensor,
        input_ids: torch.Tensor,
        all_token_ids: torch.Tensor,
    ) -> None:
        """Consume what was generated since the last call and forbid or force the sentinels, in place.

        Args:
            logits (torch.Tensor): Shape (B, V), float32, raw: before temperature, top-k and top-p.
            slots (torch.Tensor): Slot of each row of the logits, distinct, shape (B,), integer.
            slots_on_host (np.ndarray): The same slots in any order; without a gated one among them nothing is done.
            pos (torch.Tensor): Position of each row's last input token in its sequence, shape (B,), integer.
            input_ids (torch.Tensor): That token, shape (B,), integer.
            all_token_ids (torch.Tensor): Earlier tokens of each slot, prompt first, shape (num_slots, L), integer.
        """
        if self._gated[slots_on_host].any():
            self._step(self.rows, self.tables, logits, slots, pos, input_ids, all_token_ids)


def step_rows(
    rows: torch.Tensor,
    tables: torch.Tensor,
    logits: torch.Tensor,
    slots: torch.Tensor,
    pos: torch.Tensor,
    input_ids: torch.Tensor,
    all_token_ids: torch.Tensor,
) -> None:
    """One step of the gate for a batch, in plain torch: `StreamingGate.step` and `HostGates.apply`, vectorised.

    `rows` and `tables` are those of `DeviceGates`, the rest is as in `DeviceGates.apply`. Writes to rows and logits.
    """
    index = rows[slots.long(), Column.GATED].nonzero().squeeze(1)  # rows of the logits with a gate
    slots = slots[index].long()
    row = rows[slots].long()
    target = pos[index] + 1 - row[:, Column.PROMPT_LEN]  # tokens generated; negative within the prompt
    history = all_token_ids[slots]
    while (behind := row[:, Column.LENGTH] < target).any():
        at = (row[:, Column.PROMPT_LEN] + row[:, Column.LENGTH]).clamp(max=history.shape[1] - 1)
        earlier = history.gather(1, at[:, None]).squeeze(1)
        token = torch.where(row[:, Column.LENGTH] + 1 == target, input_ids[index], earlier)
        row = torch.where(behind[:, None], _consume(row, tables, token), row)
    rows[slots, _RUNNING] = row[:, _RUNNING].int()
    length, tau = row[:, Column.LENGTH], row[:, Column.TAU]
    stops = length >= torch.where(tau < NEVER, tau + row[:, Column.GRACE_WINDOW], row[:, Column.MISSED_STOP_AT])
    armed = ((row[:, Column.ENTROPY_THRESHOLD] != 0) & (tau <= length) & ~stops).nonzero().squeeze(1)
    if len(armed):
        thresholds = row[armed, Column.ENTROPY_THRESHOLD].int().view(torch.float32)
        stops[armed] = nearly_certain(logits[index[armed]], thresholds, row[armed, Column.EOS_IDS :])
    logits[index, row[:, Column.SENTINEL]] = torch.where(stops, FORCED, -torch.inf).to(logits.dtype)


def _consume(row: torch.Tensor, tables: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Rows of R slots after one more token each, shapes (R, WIDTH) and (R,)."""
    row = row.clone()
    known = (token >= 0) & (token < tables.shape[1])
    state = row[:, Column.TABLE_ROW] + row[:, Column.STATE]
    entry = tables[state, torch.where(known, token, 0)].long()
    entry = torch.where(known, entry, row[:, Column.STATE])  # an unknown token is not read
    length = row[:, Column.LENGTH] + 1
    abort_at = row[:, Column.ABORT_AT]
    earliest = torch.maximum(length, row[:, Column.POLL_THRESHOLD])
    poll = torch.minimum(round_up(earliest, row[:, Column.POLL_INTERVAL]), abort_at)
    sees = (entry >= COMPLETED) & (earliest <= abort_at) & (poll - length < row[:, Column.WINDOW])
    row[:, Column.STATE] = entry & STATE_BITS
    row[:, Column.LENGTH] = length
    row[:, Column.TAU] = torch.where(sees & (row[:, Column.TAU] >= NEVER), poll, row[:, Column.TAU])
    return row


def _request_row(request: GateRequest) -> np.ndarray:
    """The row of a request whose rollout has no tokens yet, shape (WIDTH,), int32."""
    spec, row = request.spec, np.zeros(WIDTH, dtype=np.int32)
    row[Column.GATED], row[Column.SENTINEL] = True, request.sentinel
    row[Column.POLL_THRESHOLD] = min(spec.poll_threshold, NEVER)
    row[Column.POLL_INTERVAL] = min(spec.poll_interval, NEVER)
    row[Column.ABORT_AT] = min(spec.abort_at, NEVER)
    row[Column.MISSED_STOP_AT] = NEVER if request.keep else row[Column.ABORT_AT]
    row[Column.GRACE_WINDOW] = min(spec.grace_window, NEVER - 1) if spec.trim else NEVER - 1
    row[Column.WINDOW] = NEVER if spec.window is None else min(spec.window, NEVER)
    if spec.trims_early:
        # Rounding to float32 must not switch the threshold off.
        threshold = np.clip(spec.entropy_threshold, _FLOAT32.tiny, _FLOAT32.max)
        row[Column.ENTROPY_THRESHOLD] = np.float32(threshold).view(np.int32)
    row[Column.TAU] = NEVER
    row[Column.EOS_IDS :] = padded(request.eos_ids)
    return row


def _choose_step(device: torch.device) -> Callable[..., None]:
    """The kernel on a GPU, and on a CPU where Triton interprets; `step_rows` otherwise."""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return step_rows
    from .gate_kernel import launch_step

    return launch_step
