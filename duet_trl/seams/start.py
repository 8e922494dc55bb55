# SPDX-License-Identifier: Apache-2.0
"""What a run is about to do, said once when training starts: where the gate can act, what there is to allocate."""

import logging
import math
from collections.abc import Sized
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..config import DUETGRPOConfig
from ..gate.marker_gate import MarkerGate
from ..gate.replay import GateSpec
from ..gate.thresholds import scaled_grace_window
from ..methods.duet_settings import mean_rollouts

logger = logging.getLogger(__name__)

FEW_PROMPTS = 4
"""Fewer prompts in a step leave next to nothing to allocate."""


class StartNotice(TrainerCallback):
    """One line about the gate and one about the batches; a warning for each setting that does nothing."""

    def __init__(self, config: DUETGRPOConfig, gate: MarkerGate, rows: Any) -> None:
        self.config = config
        self.gate = gate
        self.rows = rows

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say it, on the main process."""
        config, rows = self.config, self.rows
        if not (state.is_world_process_zero and config.duet_active):
            return
        for warning in precision_warnings(config):
            logger.warning(warning)
        if config.gated:
            given = self.gate.spec(), config.max_completion_length, config.options.abort_rule == "price"
            say(gate_line(*given))
            for warning in gate_warnings(*given):
                logger.warning(warning)
        per_generation = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
        num_steps = math.ceil(state.max_steps / per_generation)
        num_rows = len(rows) if isinstance(rows, Sized) else None
        say(batch_line(config, num_rows, num_steps))
        for warning in batch_warnings(config, num_rows, num_steps):
            logger.warning(warning)


def say(line: str) -> None:
    """To the log if it takes lines of this level, else to the console, as the progress of the run."""
    if logger.isEnabledFor(logging.INFO):
        logger.info(line)
    else:
        tqdm.write(line)


def precision_warnings(config: DUETGRPOConfig) -> list[str]:
    """Whether this CPU has to convert every bfloat16 product."""
    if not config.bf16 or config.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return []
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return []
    return [
        "bf16=True on a CPU without bfloat16 instructions: products are converted and take several times as long as "
        "in float32. Set bf16=False."
    ]


def gate_line(spec: GateSpec, limit: int, by_price: bool) -> str:
    """From which token trim and abort can act; by price nothing is aborted before answers are known."""
    trim = f"trim from token {spec.trim_at} on" if spec.trim else "trim off"
    abort = f"abort at K2 + G = {spec.abort_threshold} + {spec.grace_window} = {spec.abort_at}"
    if by_price and spec.abort_at >= limit:
        abort = "abort once it is known when rewarded answers come"
    return (
        f"Gate at the start, for rollouts of at most {limit} tokens: first poll at {spec.first_poll} (K1 = "
        f"{spec.poll_threshold}), {trim}, {abort if spec.abort else 'abort off'}. "
        f"{'K2' if by_price else 'K1 and K2'} will follow the rollouts."
    )


def gate_warnings(spec: GateSpec, limit: int, by_price: bool) -> list[str]:
    """What of the gate stops no rollout, or so late that not even a poll interval is saved; see `gate_line`."""
    scaled, found = scaled_grace_window(limit), []
    remedy = f"Set grace_window={scaled}" if spec.grace_window > scaled else "Raise max_completion_length"
    if spec.trim and limit - spec.trim_at < spec.poll_interval:
        found.append(
            f"trim=True saves nothing: it acts from token {spec.trim_at} of {limit} on (first poll "
            f"{spec.first_poll}, G = {spec.grace_window}). {remedy}, or set trim=False."
        )
    threshold = 1 if by_price else spec.abort_threshold  # by price it may come down to the first token
    if spec.abort and limit - threshold - spec.grace_window < spec.poll_interval:
        found.append(
            f"abort=True saves nothing: it acts at token K2 + G = {threshold} + {spec.grace_window} = "
            f"{threshold + spec.grace_window} of {limit}. {remedy}, or set abort=False."
        )
    return found


def batch_line(config: DUETGRPOConfig, num_rows: int | None, num_steps: int) -> str:
    """Prompts, rollouts, and the step from which earlier visits of a prompt are known."""
    budget = f"{mean_rollouts(config):g} rollouts each on average"
    if config.budget_reading == "tokens":
        budget = f"{config.budget_tokens:g} tokens for all"
    if num_rows is None:
        first = "once a prompt comes round again"
    elif num_rows // config.num_prompts >= num_steps:
        first = "in none of them"
    else:
        first = f"from step {num_rows // config.num_prompts + 1} on"
    return (
        f"{'A stream of' if num_rows is None else num_rows} prompts, {config.num_prompts} in a generation step with "
        f"{budget}, {num_steps} generation steps: prompts have a history {first}."
    )


def batch_warnings(config: DUETGRPOConfig, num_rows: int | None, num_steps: int) -> list[str]:
    """Where there is nothing to allocate, and where a rollout has nothing to be compared with; see `batch_line`."""
    mean, per_step, found = mean_rollouts(config), config.num_prompts, []
    if config.allocate and per_step < FEW_PROMPTS:
        found.append(
            f"Only {per_step} prompt(s) share the budget of a generation step, so there is little to allocate. Raise "
            "gradient_accumulation_steps or per_device_train_batch_size."
        )
    if config.allocate and mean <= config.num_rollouts_min:
        found.append(
            f"allocate=True has nothing to allocate: the budget of {mean:g} rollouts per prompt is num_rollouts_min. "
            "Raise budget_fraction or num_generations, lower num_rollouts_min, or set allocate=False."
        )
    elif config.allocate and num_rows is not None and num_steps <= num_rows // per_step:
        found.append(
            f"allocate=True has no history to allocate by: {num_steps} generation steps of {per_step} of {num_rows} "
            "prompts visit none of them twice, so counts stay uniform. Train more than one epoch, use fewer prompts, "
            "or set allocate=False."
        )
    lone = max(2 * per_step - math.floor(mean * per_step * (1 + 1e-12)), 0) if mean < 2 else 0
    if lone and config.options.advantage_baseline != "group":
        found.append(
            f"{lone} or more of {per_step} prompts have a single rollout: without a gradient in step 1, and compared "
            "with the mean of other prompts until they come round again. Raise num_generations or budget_fraction."
        )
    elif lone:
        found.append(
            f"{lone} or more of {per_step} prompts have a single rollout, which teaches nothing under "
            "advantage_baseline='group'. Raise num_generations or budget_fraction, or set "
            "advantage_baseline='least_noise'."
        )
    return found
