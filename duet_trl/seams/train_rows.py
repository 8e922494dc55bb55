# SPDX-License-Identifier: Apache-2.0
"""From judged rollouts to the rows TRL trains on, what its loss divides by, and from log-probs back to rollouts.

TRL divides by what is in a micro-batch under five loss types: by its rows (`grpo`, `dr_grpo`, `luspo`, `sapo`) or
its tokens (`bnpo`). Here rollouts leave the batch, others pad it, and rows are placed by length. So a micro-batch is
scaled by TRL's divisor over its share of the right one: all rollouts that count (N_t of Eq. 6), or all their tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import pad, split_tensor_dict

from ..config import DUETGRPOConfig
from ..exchange import PADDING_ROW, Exchange, pack
from ..methods.grouping import spread_within
from ..rollouts import LocalRollout, StepRecord


class TrlsLogps:
    """Log-probs before the updates of a batch as TRL computes them, where it needs any; `old_logps.py` has another."""

    def stand_ins(self, logprobs: list | None) -> dict[str, Any]:
        """What replaces TRL's scoring of a batch, from the log-probs of its rows under the engine."""
        return {}

    def put_off(self, batch: dict[str, torch.Tensor]) -> None:
        """Take out of TRL's batch, and out of its metrics, what the training pass will know; in place."""

    def weigh(self, batch: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
        """Put TRL's importance weights into a micro-batch, in place, from its log-probs now, shape (B, C), nats."""

    def log(self) -> None:
        """Give TRL its metrics of the weights of a batch, after its last micro-batch; over all processes."""


def keeps_order(plain: bool, args: DUETGRPOConfig, router_loss: bool) -> bool:
    """Whether rows stay where GRPOTrainer has them.

    It assigns rows to the optimizer steps of a generation step at random; with every part off so do we, and match GRPO
    loss for loss. Within one optimizer step the order does not matter, unless the model has an auxiliary loss of its
    router or the loss is `bnpo`, which are not linear in the rows of a micro-batch.
    """
    several_steps = args.steps_per_generation > args.gradient_accumulation_steps
    return plain and (router_loss or args.loss_type == "bnpo" or several_steps)


def place(step: StepRecord, args: DUETGRPOConfig, num_processes: int, shares_prompts: bool = False) -> None:
    """Place the trained rollouts on processes, optimizer steps and micro-batches: `step.packed_rows` (W, rows).

    Where prompts are shared, the rows of one stay together within an optimizer step.
    """
    if step.keeps_order:
        step.packed_rows = np.arange(len(step.jobs)).reshape(num_processes, -1)
        return
    num_windows, rest = divmod(args.steps_per_generation, args.gradient_accumulation_steps)
    if rest or num_windows == 0:
        num_windows = 1  # optimizer steps and generation steps are out of phase
    trained = np.flatnonzero(step.judgement.in_gradient)
    lengths = step.row_tokens[trained]
    groups = step.done.prompt[trained] if shares_prompts else None
    packing = pack(lengths, num_processes, num_windows, args.steps_per_generation // num_windows, groups)
    # The last entry is for the index of padding rows.
    step.packed_rows = np.append(trained, PADDING_ROW)[packing].reshape(num_processes, -1)


def is_empty(step: StepRecord, chunk: int, num_chunks: int) -> bool:
    """Whether a micro-batch of packed rows holds no policy token on any process."""
    rows = step.packed_rows.reshape(len(step.packed_rows), num_chunks, -1)[:, chunk]
    return not step.loss_tokens[rows[rows != PADDING_ROW]].any()


def replay_batch(
    step: StepRecord, exchange: Exchange, process: int, eos_id: int, mask_truncated: bool
) -> tuple[list[dict], tuple, torch.Tensor]:
    """Rows of one process, in micro-batch order: their examples, what TRL's `_generate` would have returned of them,
    and the rewards of all processes.

    Padding rows hold one EOS that is not a policy token. A rollout that the gate stopped gets such an EOS where TRL
    would otherwise take it for one that ran into the length limit, or where it is taught (`weigh`).
    """
    rows = step.packed_rows[process]
    rollouts = _fetch(step, exchange)
    closing = ((rows == PADDING_ROW) | (mask_truncated & step.stopped[rows]) | step.taught_to_end[rows]).tolist()
    train = [_first_tokens(rollouts[row], step.row_tokens[row]) for row in rows.tolist()]
    completion_ids = [r.completion_ids + [eos_id] * end for r, end in zip(train, closing, strict=True)]
    masks = [[1] * len(r.completion_ids) + [0] * end for r, end in zip(train, closing, strict=True)]
    logprobs = None
    if step.spare.logprobs is not None:
        logprobs = [r.logprobs + [0.0] * end for r, end in zip(train, closing, strict=True)]
    generated = (
        [r.prompt_ids for r in train],
        completion_ids,
        masks if _any_closing(step, mask_truncated) else None,
        [r.completion for r in train],
        logprobs,
        {},
        None,
        [],
    )
    inputs = [dict(step.prompts[step.done.prompt[row]].example) for row in rows]
    return inputs, generated, _rewards(step)


def _first_tokens(rollout: LocalRollout, count: int) -> LocalRollout:
    """The part of a rollout that is in a row; that of padding has no token."""
    logprobs = None if rollout.logprobs is None else rollout.logprobs[:count]
    return replace(rollout, completion_ids=rollout.completion_ids[:count], logprobs=logprobs)


def _any_closing(step: StepRecord, mask_truncated: bool) -> bool:
    """Whether any process has a token outside the loss, so that all build the same mask."""
    closed = mask_truncated and (step.stopped & step.judgement.in_gradient).any()
    return bool(closed or step.taught_to_end.any() or (step.packed_rows == PADDING_ROW).any())


def _rewards(step: StepRecord) -> torch.Tensor:
    """Rewards of the packed rows of all processes, shape (W * rows, F); 0 for padding."""
    everywhere = torch.from_numpy(step.packed_rows.reshape(-1)).to(step.done.rewards_per_func.device)
    return torch.where((everywhere >= 0)[:, None], step.done.rewards_per_func[everywhere.clamp(min=0)], 0.0)


def _fetch(step: StepRecord, exchange: Exchange) -> dict[int, LocalRollout]:
    """The rollouts of this process's packed rows by number, and an empty one for padding."""
    local = {row: rollout for row, rollout in step.local.items() if step.judgement.in_gradient[row]}
    wanted = exchange.rollouts(local, [rows[rows != PADDING_ROW].tolist() for rows in step.packed_rows])
    # Any prompt does; it is attended to by one token that no loss sees.
    return wanted | {PADDING_ROW: LocalRollout(step.spare.prompt_ids, [], step.spare.completion, [])}


def check_token_count(step: StepRecord, counted: int) -> None:
    """Compare TRL's token count with the kept tokens."""
    if counted != step.num_train_tokens:
        raise RuntimeError(
            f"TRL counts {counted} policy tokens where {step.num_train_tokens} were kept: this TRL version treats "
            "replayed rollouts differently. Install the range named in setup.cfg."
        )


def weigh(step: StepRecord, output: dict[str, torch.Tensor], process: int) -> None:
    """Put w * A, N_t and the rollouts' numbers into TRL's batch (Eq. 6), in place.

    The token that closes a row was marked as a tool's, outside the loss; from here on it is padding, or the EOS that
    the row teaches: `duet_end` is its place, -1 where there is none.
    """
    check_token_count(step, int(output["num_items_in_batch"]))
    advantages = torch.from_numpy(step.judgement.advantages).to(output["advantages"])
    numbers = torch.from_numpy(step.packed_rows[process]).to(advantages.device)
    weighted = advantages * torch.from_numpy(step.judgement.weight * step.in_divisor).to(advantages)
    output["advantages"] = torch.where(numbers >= 0, weighted[numbers.clamp(min=0)], 0.0)
    output["num_items_in_batch"] = torch.full_like(output["num_items_in_batch"], step.num_kept_tokens)
    output["duet_row"] = numbers
    if "tool_mask" in output:
        output["completion_mask"] = output["completion_mask"] * output.pop("tool_mask")
    rows = step.packed_rows[process]
    ends = np.where((rows != PADDING_ROW) & step.taught_to_end[rows], step.row_tokens[rows], -1)
    output["duet_end"] = torch.from_numpy(ends).to(advantages.device)
    output["completion_mask"][_taught(output)] = 1


def _taught(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each EOS that a batch teaches."""
    rows = (batch["duet_end"] >= 0).nonzero()[:, 0]
    return rows, batch["duet_end"][rows]


def hide_padding(output: dict[str, torch.Tensor], num_chunks: int) -> None:
    """Keep padding rows out of the auxiliary loss of a router, a mean over all attended tokens, in place.

    A micro-batch of nothing but padding stays: a model cannot run on zero tokens. `scaled_terms` leaves its loss out.
    """
    real = (output["duet_row"] >= 0).view(num_chunks, -1)
    attended = real | ~real.any(dim=1, keepdim=True)
    output["prompt_mask"] = output["prompt_mask"] * attended.view(-1, 1)


class Nonfinite(RuntimeError):
    """A rollout that is trained has no finite log-probability under the policy."""


def collect_logps(step: StepRecord, exchange: Exchange) -> None:
    """Fill `step.sum_logps` with what was captured on all processes.

    With a separate pass for old log-probabilities that is before the first update, else within it: always before the
    optimizer moves. A rollout that TRL masks as truncated has no log-probability, counts with its length and reward,
    and stays out of sigma.

    Raises:
        Nonfinite: If a log-probability is NaN or infinite. The gradient is then NaN, and so would be every weight.
    """
    captured = exchange.accelerator.gather(torch.cat(step.captured)).cpu().numpy()  # (W * rows, 3)
    captured, step.captured = captured[captured[:, 0] >= 0], []
    check_token_count(step, int(captured[:, 2].sum()))
    seen = captured[captured[:, 2] > 0]
    step.sum_logps = np.full(len(step.jobs), np.nan)
    step.sum_logps[seen[:, 0].astype(np.int64)] = seen[:, 1]
    num_broken = int((~np.isfinite(seen[:, 1])).sum())
    if num_broken:
        raise Nonfinite(
            f"{num_broken} of {len(seen)} rollouts of generation step {step.prompts.step} have no finite "
            "log-probability under the policy, and one is enough to make every weight NaN. Lower the learning rate, "
            "or check the model's weights"
        )


_COMPLETION_COLUMNS = (
    "completion_ids",
    "completion_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)


def micro_batches(step: StepRecord, shuffled: list[dict], multiple: int | None) -> list[dict[str, torch.Tensor]]:
    """Micro-batches of this process without columns that are padding in every row; `shuffled` are TRL's.

    TRL shuffles rows over micro-batches; the packing put neighbours in length together.
    """
    rows, step.train_rows = step.train_rows, {}
    chunks = shuffled if step.keeps_order else split_tensor_dict(rows, len(shuffled))
    return [trim_columns(chunk, multiple) for chunk in chunks]


def trim_columns(chunk: dict[str, torch.Tensor], multiple: int | None) -> dict[str, torch.Tensor]:
    """Drop the columns of a micro-batch that are padding in every row."""
    prompt_width = _width(chunk["prompt_mask"].flip(1), multiple)
    completion_width = _width(chunk["completion_mask"], multiple)
    trimmed = dict(chunk)
    for name in ("prompt_ids", "prompt_mask"):
        trimmed[name] = chunk[name][:, -prompt_width:]
    full = chunk["completion_ids"].size(1)
    for name in _COMPLETION_COLUMNS:
        if name in chunk and chunk[name].size(1) == full:  # a sequence-level ratio has one column
            trimmed[name] = chunk[name][:, :completion_width]
    return trimmed


def _width(mask: torch.Tensor, multiple: int | None) -> int:
    """Columns up to the last one that any row uses, at least 1, rounded up to `multiple`."""
    used = mask.any(dim=0).nonzero()
    width = int(used.max()) + 1 if used.numel() else 1
    if multiple is not None:
        width = -(-width // multiple) * multiple
    return min(width, mask.size(1))


def side_by_side(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Prompts padded on the left and completions padded on the right, as TRL lays them out.

    Returns:
        tuple: Ids and attention mask, shape (B, P + C) each, and C, the tokens of the longest completion.
    """
    left, right = ([torch.tensor(ids, device=device) for ids in side] for side in (prompts, completions))
    ids = torch.cat([pad(left, padding, "left"), pad(right, padding, "right")], dim=1)
    masks = [[torch.ones_like(one) for one in side] for side in (left, right)]
    mask = torch.cat([pad(masks[0], 0, "left"), pad(masks[1], 0, "right")], dim=1)
    return ids, mask, max(map(len, right))


def teach_endings(inputs: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
    """Let the EOS that is taught count as a token that the policy has just drawn: every ratio there is 1, in place.

    `inputs` is a micro-batch before TRL reads its ratios; `logps`, nats, are those of its tokens now, shape (B, C),
    without a gradient.
    """
    place = _taught(inputs)
    for name, value in (("old_per_token_logps", logps), ("importance_sampling_ratio", torch.ones_like(logps))):
        known = inputs.get(name)
        if known is not None and known.shape == logps.shape:  # a sequence-level ratio is that of the tokens drawn
            inputs[name] = known.index_put(place, value[place].to(known.dtype))


BY_TOKENS = ("dapo", "cispo", "vespo")
"""Loss types that divide by the tokens of the generation step, which TRL is told."""
_ONE_REWARD = 1e-6
"""Spread of a prompt's rewards up to which they are equal."""
_ROUNDING = 1e-2
"""Below it an advantage of equal rewards is float32 rounding over the 1e-4 added to their deviation."""


def count_tokens(step: StepRecord, args: DUETGRPOConfig, teaches_ending: bool) -> None:
    """Policy tokens that get a forward pass, who counts, and N_t of Eq. 6: the tokens of those who do.

    With `teaches_ending` a trimmed rollout is trained as far as its answer goes: no reward is for what follows. Where
    the answer was good, an EOS is trained after it, which is not a token of the policy and is never counted. The same
    holds for a rollout that a stop string ended, so that the policy can be served without it.
    """
    judgement = step.judgement
    cut = teaches_ending & step.replay.trimmed & (step.replay.completed_at > 0)
    by_string = teaches_ending & step.truncated & (step.replay.length < args.max_completion_length)
    step.row_tokens = np.where(cut, step.replay.completed_at, step.replay.length)
    good = judgement.in_gradient & (judgement.weight * judgement.advantages > 0)
    step.taught_to_end = (cut | by_string) & good
    step.loss_tokens = np.where(args.mask_truncated_completions & step.truncated, 0, step.row_tokens)
    step.num_train_tokens = int(step.loss_tokens[judgement.in_gradient].sum())
    step.in_divisor = judgement.in_divisor
    if args.exclude_zero_variance_groups:
        step.in_divisor = judgement.in_divisor & ~_zero_variance(step)
    step.num_kept_tokens = int(step.loss_tokens[step.in_divisor].sum())


def _zero_variance(step: StepRecord) -> np.ndarray:
    """Rollouts of prompts whose rewards are all equal, and that all leave the policy unmoved, shape (N,), bool."""
    judgement, group = step.judgement, step.done.prompt
    spread = spread_within(step.done.rewards, group, len(step.prompts))
    moves = judgement.in_gradient & (np.abs(judgement.weight * judgement.advantages) > _ROUNDING)
    moved = np.bincount(group, weights=moves, minlength=len(spread)) > 0
    return ((spread <= _ONE_REWARD) & ~moved)[group]


def scale(step: StepRecord, batch: dict[str, torch.Tensor], args: DUETGRPOConfig, num_processes: int) -> float:
    """TRL's divisor of a micro-batch over the right one, the same for all micro-batches of a step.

    Raises:
        RuntimeError: If TRL would divide by another number of tokens than N_t.
    """
    told = int(batch["num_items_in_batch"])
    if told != step.num_kept_tokens:
        raise RuntimeError(f"The loss would divide by {told} tokens where {step.num_kept_tokens} were kept.")
    if args.loss_type in BY_TOKENS:
        return 1.0
    stands, counts = len(batch["advantages"]), int(step.in_divisor.sum())
    if args.loss_type == "bnpo":
        if args.method == "grpo" and not args.exclude_zero_variance_groups:
            return 1.0  # TRL's own: a mean over micro-batches, whatever their tokens
        stands, counts = int(batch["completion_mask"].sum()), step.num_kept_tokens
    return max(stands, 1) * args.steps_per_generation * num_processes / max(counts, 1)


def scaled_terms(trainer: Any, batch: dict[str, torch.Tensor], factor: float) -> AbstractContextManager:
    """While TRL computes a loss: the KL term has the scale of the advantages, and padding no router loss."""
    hidden = trainer.aux_loss_enabled and bool((batch["duet_row"] == PADDING_ROW).all())
    router = 0.0 if hidden else trainer.router_aux_loss_coef
    return standing_in(trainer, beta=trainer.beta * factor, router_aux_loss_coef=router)


@contextmanager
def standing_in(owner: Any, **stand_ins: Any) -> Iterator[None]:
    """While active, attributes of an object are replaced, functions of TRL among them."""
    before = {name: owner.__dict__[name] for name in stand_ins if name in owner.__dict__}
    for name, one in stand_ins.items():
        setattr(owner, name, one)
    try:
        yield
    finally:
        for name in stand_ins:
            delattr(owner, name)
        for name, one in before.items():
            setattr(owner, name, one)
