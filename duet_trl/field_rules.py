# SPDX-License-Identifier: Apache-2.0
"""What the value of a field must be, and when a field acts: a value that breaks either is refused."""

import math

from .field_types import Acts, at_least, one_of
from .methods.duet_settings import GATED
from .update.cut import CUTS

_ON_SERVER = Acts(lambda v: v.use_vllm and v.vllm_mode == "server", "use_vllm=True and vllm_mode='server'")
# DeepSpeed has a plugin also where only accelerate's configuration chose it.
FIELD_ACTS = {
    "budget_fraction": Acts(lambda v: v.budget_reading != "tokens", "budget_reading='rollouts' or 'reference'"),
    "budget_tokens": Acts(lambda v: v.budget_reading == "tokens", "budget_reading='tokens'"),
    "marker": GATED,
    "grace_window": GATED,
    "sentinel_token_id": GATED,
    "server_weight_sync": _ON_SERVER,
    "server_weights_dir": Acts(
        lambda v: _ON_SERVER.when(v) and v.server_weight_sync != "nccl",
        f"{_ON_SERVER.condition}, and server_weight_sync other than 'nccl'",
    ),
    "audit_columns": Acts(lambda v: v.audit_log, "audit_log=True"),
    "exclude_zero_variance_groups": Acts(
        lambda v: v.beta == 0 or not v.exclude_zero_variance_groups, "beta=0, as the KL term of these rollouts counts"
    ),
    "old_logps": Acts(
        lambda v: (
            v.use_vllm
            and (
                v.vllm_importance_sampling_correction
                or v.gradient_accumulation_steps % (v.steps_per_generation * v.num_iterations) != 0
            )
        ),
        "use_vllm=True, where TRL computes log-probs before the updates: with vllm_importance_sampling_correction, "
        "num_iterations above 1, or gradient_accumulation_steps below steps_per_generation",
    ),
    "desired_kl": Acts(lambda v: v.updates == "several", "updates='several'"),
}
"""When a field acts; a method may have rules of its own (`Entry.acts`)."""

FIELD_RULES = {
    "max_completion_length": at_least(1),
    "num_rollouts_min": at_least(1),
    "num_rollouts_max": at_least(1),
    "max_rollouts": at_least(1),
    "grace_window": at_least(0),
    "old_logps": one_of("trainer", "engine"),
    "budget_reading": one_of("rollouts", "reference", "tokens"),
    "server_weight_sync": one_of("nccl", "disk"),
    "scale_rewards": one_of("group", "batch", "none"),
    "loss_type": one_of("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "luspo", "sapo", "vespo"),
    "multi_objective_aggregation": one_of("sum_then_normalize", "normalize_then_sum"),
    "budget_fraction": (lambda x: 0 < x <= 1, "in (0, 1]. Raise num_generations for more; got {}"),
    "keep_probability": (lambda x: 0 < x <= 1, "in (0, 1]. Use abort=False to keep everything; got {}"),
    "updates": one_of("once", *CUTS),
    "desired_kl": (lambda x: 0 < x < math.inf, "above 0, nats per token; got {}"),
    "ending_reward_weight": (lambda x: 0 <= x < math.inf, "at least 0; 0 adds no reward; got {}"),
}
"""What the value of a field must be; the options of a method carry their own rules."""
