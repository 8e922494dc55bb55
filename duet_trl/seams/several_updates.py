# SPDX-License-Identifier: Apache-2.0
"""Several updates of a batch (`updates`), inside transformers' loop over optimizer steps.

`several`: two passes over the batch in two halves, kept inside a trust region (`update/trust_region.py`). After every
update some of the batch's rollouts, trained or not, are scored again; the result decides about the next update.
`sfpo`: three passes, a step back, and one more, as in SFPO (arXiv 2510.04072), without a region.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from ..rollouts import LocalRollout, StepRecord
from ..update.divergence import divergence_sums, in_float32, nudged
from ..update.relative_epsilon import RelativeEpsilon
from ..update.trust_region import CUTS, TrustRegion
from .backend import reshard
from .train_rows import side_by_side

logger = logging.getLogger(__name__)

PROBE_SHARE, PROBE_TOKENS, PROBE_ROLLOUTS = 1 / 4, 1024, 4
"""Rollouts that are scored again: this share of them, or as many as have this many tokens on each process if that is
less; at least this many rollouts."""
SFPO_SHARE = 0.8
"""Share of the fast updates' displacement that SFPO keeps."""


class SeveralUpdates(TrainerCallback):
    """The updates of a batch of a trainer whose `args.updates` is a key of `CUTS`, measured and bounded."""

    def __init__(self, trainer: Any) -> None:
        args = trainer.args
        cut = CUTS[args.updates]
        self.trainer = trainer
        self.region = TrustRegion(args.desired_kl, cut.updates) if args.updates == "several" else None
        self.epsilon = RelativeEpsilon() if args.updates == "several" else None
        self.fast = None if args.updates == "several" else cut.passes - 1
        self.num_updates = cut.updates
        self.made = self._passed = 0  # updates of the batch: those made, and those whose turn has passed
        self._rows: list[LocalRollout] = []
        self._logps: list[torch.Tensor] = []  # before the first update
        self._start: list[torch.Tensor] = []
        self._rounding: float | None = None
        self.clipped_norm = 0.0  # of the last gradient, as the optimizer gets it

    @cached_property
    def _exact(self) -> bool:
        """Whether the forward pass of this process can run in float32; read once the model is prepared."""
        model = self.trainer.model
        sharded = self.trainer.is_fsdp_enabled or any(isinstance(one, DTensor) for one in model.parameters())
        exact = not sharded and not any(one.dtype.itemsize == 1 for one in model.parameters())
        if not exact:
            logger.info(
                "The weights are sharded or quantised, so the divergence of updates is measured in the model's own "
                "precision, less its rounding, at one forward pass more for each batch."
            )
        return exact

    @property
    def closed(self) -> bool:
        """Whether the remaining updates of the batch are skipped."""
        return self.region is not None and self.region.closed

    def begin(self, step: StepRecord) -> None:
        """Note where the updates of a batch begin."""
        self.made, self._passed, self._rounding = 0, 0, None
        if self.region is not None:
            self.region.begin(worth=bool(step.num_train_tokens))
            if self.closed:
                return
            self._rows = _drawn(step, self.trainer)
            self._logps = self._score()
        self._start = [one.clone() for one in self._weights()]

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Without gradients an optimizer moves nothing."""
        if self.closed:
            self.trainer.optimizer.zero_grad()
        elif self.epsilon is not None:
            self.epsilon.set(self.trainer.optimizer, self.clipped_norm)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Measure the divergence after an update, and judge it."""
        if not self.closed:
            self.made += 1
            if self.region is not None:
                self.region.after_update(self._measure(), self._at)
            elif self.made == self.fast:
                self._pull_back(SFPO_SHARE)
        self._passed += 1
        if self._passed == self.num_updates:
            self._rows, self._logps, self._start = [], [], []
            if self.region is not None:  # before transformers asks the schedule for the next rate
                self.trainer.report(self.region.end(self.made))

    # ---- Measuring --------------------------------------------------------------------------------------------------

    def _measure(self) -> float:
        """Divergence of the policy before the batch from the one now, nats per token, over all processes."""
        sums = self._sums(self._score(), self._logps)
        found = float(sums[0] / sums[1])
        if self._exact:
            return found
        if self._rounding is None:
            now = self._score()
            with nudged(self._weights(), self.trainer.state.global_step):
                rounding = self._sums(self._score(), now)
            self._rounding = float(rounding[0] / rounding[1])
        return max(found - self._rounding, 0.0) if math.isfinite(found) else found

    def _sums(self, now: list[torch.Tensor], before: list[torch.Tensor]) -> torch.Tensor:
        moved = torch.cat(now) - torch.cat(before)
        own = divergence_sums(moved, torch.ones_like(moved))
        accelerator = self.trainer.accelerator
        return accelerator.reduce(own.float().to(accelerator.device), reduction="sum")

    @torch.no_grad()
    def _score(self) -> list[torch.Tensor]:
        """Log-probs of the drawn rollouts' tokens, a tensor each."""
        with self._forward() as forward:
            size = self.trainer.args.per_device_train_batch_size
            chunks = [self._rows[first : first + size] for first in range(0, len(self._rows), size)]
            return [logps for chunk in chunks for logps in self._score_chunk(forward, chunk)]

    def _score_chunk(self, forward: Any, rows: Sequence[LocalRollout]) -> list[torch.Tensor]:
        prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
        padding, device = self.trainer._tokenizer.pad_token_id, self.trainer.accelerator.device
        ids, mask, width = side_by_side(prompts, completions, padding, device)
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :-width] = -100
        logps = forward(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[:, -width:]
        return [row[: len(drawn)].float() for row, drawn in zip(logps, completions, strict=True)]

    @contextmanager
    def _forward(self) -> Iterator[Any]:
        trainer = self.trainer
        if self._exact:
            with in_float32(trainer.model) as forward:
                yield forward
        else:
            with trainer.accelerator.autocast():
                yield trainer.model
            reshard(trainer.model)  # what stayed whole would not see the next update

    # ---- Weights ----------------------------------------------------------------------------------------------------

    def _weights(self) -> list[torch.Tensor]:
        """This process's part of every weight that is trained, sharing its memory."""
        reshard(self.trainer.model)
        weights = [one.detach() for one in self.trainer.model.parameters() if one.requires_grad]
        return [one.to_local() if isinstance(one, DTensor) else one for one in weights]

    @torch.no_grad()
    def _pull_back(self, share: float) -> None:
        """Put the weights at a share of the way from where the batch began to where they are."""
        for one, start in zip(self._weights(), self._start, strict=True):
            if share:
                one.lerp_(start, 1.0 - share)
            else:
                one.copy_(start)  # also where they are not finite

    def _at(self, share: float) -> float:
        self._pull_back(share)
        return self._measure()

    # ---- State ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        parts = (self.region, self.epsilon)
        return {name: value for part in parts if part is not None for name, value in part.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`."""
        for part in (self.region, self.epsilon):
            if part is not None:
                part.load_state_dict(state)


def _drawn(step: StepRecord, trainer: Any) -> list[LocalRollout]:
    """Rollouts of this process to be scored again, the same number on each: a sharded model gathers weights."""
    counted = step.counted & (step.row_tokens > 0)
    num_processes, process = trainer.accelerator.num_processes, trainer.accelerator.process_index
    mean_length = float(step.row_tokens[counted].mean()) if counted.any() else 1.0
    share = counted.sum() / num_processes
    count = math.ceil(max(min(share * PROBE_SHARE, PROBE_TOKENS / mean_length), min(share, PROBE_ROLLOUTS)))
    own = [row for row in step.local if counted[row]]
    random = np.random.default_rng([trainer.args.seed, step.prompts.step, process])
    if not own:
        ids = step.spare.completion_ids or [trainer.eos_token_ids[0]]
        return [replace(step.spare, completion_ids=ids)] * count
    chosen = np.resize(random.permutation(own), count).tolist()
    cut = ((step.local[row], int(step.row_tokens[row])) for row in chosen)  # what follows an answer is not trained
    return [replace(rollout, completion_ids=rollout.completion_ids[:tokens]) for rollout, tokens in cut]
