# SPDX-License-Identifier: Apache-2.0
"""Log-probs before the updates of a batch, without the forward pass over it that TRL makes for them.

TRL needs them for the clipped ratio, and with vLLM for the importance weight of each token against the log-prob that
it was sampled with. Where a batch gets one update, the pass of that update has the same log-probs: weights, and what
TRL logs of them, come from there.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from trl.trainer.utils import nanmax, nanmin, pad

from ..rollouts import policy_mask
from .train_rows import TrlsLogps

OLD, WEIGHT, SAMPLED = "old_per_token_logps", "importance_sampling_ratio", "sampling_per_token_logps"
_METRICS = "sampling/sampling_logp_difference/", "sampling/importance_sampling_ratio/"


def old_logps(trainer: Any) -> TrlsLogps:
    """Where the log-probs before the updates of `trainer` come from; its arguments are settled."""
    args = trainer.args
    one_update = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) == 0
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    # With overlap the next rollouts are planned before the update, by a method that has seen this batch.
    return LateLogps(trainer) if corrected and one_update and not args.overlap else TrlsLogps()


class LateLogps(TrlsLogps):
    """Those of the training pass. In TRL's scoring those of the engine stand in for them: every weight is 1 there."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # distances and weights of each micro-batch

    def stand_ins(self, logprobs: list | None) -> dict[str, Any]:
        """As `TrlsLogps`. ValueError if the engine gave none."""
        trainer = self.trainer
        known = sampled_logps(logprobs, trainer.pad_to_multiple_of).to(trainer.accelerator.device)
        return {"_get_per_token_logps_and_entropies": first_known(known, trainer._get_per_token_logps_and_entropies)}

    def put_off(self, batch: dict[str, torch.Tensor]) -> None:
        """As `TrlsLogps`."""
        del batch[OLD], batch[WEIGHT]
        logged = self.trainer._metrics["train"]
        for name in [name for name in logged if name.startswith(_METRICS)]:
            logged[name].pop()
            if not logged[name]:
                del logged[name]

    def weigh(self, batch: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
        """As `TrlsLogps`."""
        args, mask = self.trainer.args, policy_mask(batch)
        difference = torch.nan_to_num((logps - batch[SAMPLED]) * mask, nan=0.0)  # not known: weight 1
        by_sequence = args.vllm_importance_sampling_mode.startswith("sequence")
        weight = torch.exp(difference.sum(dim=-1, keepdim=True) if by_sequence else difference)
        low, high = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
        if args.vllm_importance_sampling_mode.endswith("truncate"):
            weight = weight.clamp(low, high)
        else:
            outside = (weight < (-math.inf if low is None else low)) | (weight > (math.inf if high is None else high))
            weight = weight.masked_fill(outside, 0.0)
        batch[WEIGHT] = weight
        known = mask.bool() & ~batch[SAMPLED].isnan()
        self._seen.append((difference.abs()[known], weight.flatten() if by_sequence else weight[mask.bool()]))

    def log(self) -> None:
        """As `TrlsLogps`."""
        seen, self._seen = self._seen, []
        if not seen:
            return
        none = torch.zeros(1, device=self.trainer.accelerator.device)
        distance, weight = (part if len(part := torch.cat(parts)) else none for parts in zip(*seen, strict=True))
        gather, logged = self.trainer.accelerator.gather, self.trainer._metrics["train"]
        logged[_METRICS[0] + "mean"].append(gather(distance.mean()).mean().item())
        logged[_METRICS[0] + "max"].append(gather(distance.max()).max().item())
        logged[_METRICS[1] + "min"].append(nanmin(gather(weight.min())).item())
        logged[_METRICS[1] + "mean"].append(gather(weight.mean()).nanmean().item())
        logged[_METRICS[1] + "max"].append(nanmax(gather(weight.max())).item())


def sampled_logps(logprobs: list | None, multiple: int | None) -> torch.Tensor:
    """Log-probs that the tokens of each row were drawn with, padded as TRL pads completions, shape (B, C).

    `multiple` is TRL's `pad_to_multiple_of`; nan is one that is not known. ValueError if the engine gave none.
    """
    if logprobs is None:
        raise ValueError(
            "vllm_importance_sampling_correction=True needs an engine that returns the log-probs of its tokens, and "
            "this one returned none. Set it to False."
        )
    rows = [torch.tensor([math.nan if x is None else x for x in row], dtype=torch.float32) for row in logprobs]
    return pad(rows, 0.0, padding_side="right", pad_to_multiple_of=multiple)


def first_known(logps: torch.Tensor, score: Callable[..., tuple]) -> Callable[..., tuple]:
    """A scorer of rows, the first of them the policy's, known already; a reference model comes later."""
    known = [logps]
    return lambda *args, **kwargs: (known.pop(), None, None) if known else score(*args, **kwargs)
