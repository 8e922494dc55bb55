# SPDX-License-Identifier: Apache-2.0
"""Every knob of DUET with its paper symbol, unit, preset values and check."""

from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from .field_types import check_types
from .gate.markers import get_marker
from .gate.thoughts import parse_delimiters
from .gate.thresholds import scaled_grace_window
from .methods import METHODS
from .presets import PRESETS, refuse_lone_rollouts, resolve

# Fields that count something, and the least each can be.
_COUNTS = {
    "max_completion_length": 1,
    "num_rollouts_min": 1,
    "num_rollouts_max": 1,
    "max_rollouts": 1,
    "surrogate_warmup": 1,
    "surrogate_reprobe": 0,
    "marker_window": 0,
    "grace_window": 0,
    "poll_interval": 1,
    "threshold_window": 1,
    "threshold_interval": 1,
}


def _knob(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass
class DUETGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`DUETGRPOTrainer`].

    Everything of [`~trl.GRPOConfig`] stays as it is. `num_generations` becomes the *average* number of rollouts per
    prompt at `budget_fraction=1`, and `per_device_train_batch_size` the most rollouts of one micro-batch. A field
    whose default is `None` takes the value of the chosen `preset`; after construction it holds that value. The
    presets are compared switch by switch in `docs/fidelity.md`.

    Parameters:
        > Parameters that choose the method

        preset (`str`, *optional*, defaults to `"duet"`):
            `"duet"` (recommended) or `"paper"` (the text of Algorithm 1).
        method (`str`, *optional*, defaults to `"duet"`):
            `"duet"`, or `"grpo"`: uniform counts at full budget, no gate, every weight 1.
        allocate, trim, abort (`bool`, *optional*, defaults to `True`):
            Switch a part of DUET off alone. All off at `budget_fraction=1` is GRPO.

        > Parameters of the other groups are described by their `help` and in `docs/notation.md`.
    """

    preset: str = _knob("'duet' (recommended) or 'paper' (Algorithm 1).", default="duet")
    method: str = _knob("'duet', or 'grpo': uniform counts, full budget, no gate.", default="duet")
    allocate: bool = _knob("Allocate rollouts by allocation_objective. False: as many for every prompt.", default=True)
    trim: bool = _knob("Stop a rollout shortly after its answer marker.", default=True)
    abort: bool = _knob("Abort rollouts without a marker at abort_threshold + grace_window.", default=True)

    # Parameters that control the budget (paper, sections 2 and 3.1)
    budget_fraction: float = _knob("b: share of the full budget, in (0, 1]. Paper: 0.25, 0.5, 1.", default=0.5)
    budget_reading: str = _knob(
        "What B means. 'rollouts': b x num_generations rollouts per prompt at current expected lengths (reproduces "
        "the paper). 'reference': b x the token cost of uniform GRPO measured in the first epoch, then frozen. "
        "'tokens': budget_tokens.",
        default="rollouts",
    )
    budget_tokens: float | None = _knob("B in tokens per step; only for budget_reading='tokens'.", default=None)
    price_aborted: bool | None = _knob(
        "Price a prompt at all its generated tokens, aborted rollouts included (duet), or at kept lengths only "
        "(paper).",
        default=None,
    )

    # Parameters that control the allocation (paper, section 3.1)
    num_rollouts_min: int | None = _knob(
        "n_min, rollouts per prompt. paper: 1. duet: 2 where the budget averages more than 2, else 1.",
        default=None,
    )
    num_rollouts_max: int = _knob("n_max, rollouts per prompt. Paper: range up to 32.", default=32)
    max_rollouts: int | None = _knob(
        "Most rollouts of one generation step over all processes: the memory guarantee. None: generation_batch_size.",
        default=None,
    )
    allocation_objective: str | None = _knob(
        "What the counts optimise: 'variance' (Theorem 1; paper) or 'mixed', the expected number of prompts "
        "whose rewards differ (duet).",
        default=None,
    )
    reward_decay: float = _knob("Factor on a prompt's reward history from one visit to the next.", default=0.7)
    allocation_solver: str | None = _knob(
        "'greedy' by gain per token (duet) or the ten-step 'bisection' of Eq. 4 (paper).", default=None
    )
    surrogate_warmup: int = _knob("k_warmup: observations before a prompt's sigma is used. Paper: 1.", default=1)
    surrogate_floor: float | None = _knob(
        "s_floor: least sigma, advantage x nats, in the first epoch. paper, duet: 0.01.", default=None
    )
    surrogate_floor_quantile: float | None = _knob(
        "Quantile of the positive sigmas that replaces s_floor, if larger, after the first epoch. paper, duet: 0.05. "
        "0: never.",
        default=None,
    )
    surrogate_unseen: str | None = _knob(
        "Sigma of a prompt without an observation: 'floor' (paper), or 'median' of the others (duet).",
        default=None,
    )
    surrogate_shrinkage: float | None = _knob(
        "kappa: pseudo-observations that pull sigma toward the pool mean. paper: 0. duet: 1.", default=None
    )
    surrogate_reprobe: int | None = _knob(
        "Visits without a new observation of sigma after which a prompt gets at least 2 rollouts. 0: never (paper). "
        "duet: 2.",
        default=None,
    )

    # Parameters that control the gate (paper, section 3.2)
    marker: str | None = _knob(
        "'math', 'math_paragraph', 'code', 'qa' or 'regex:<pattern>'. duet: 'math'. paper: 'math_paragraph', its "
        "literal form.",
        default=None,
    )
    thought_delimiters: list[str] | None = _knob(
        "What opens and closes a thought, where no answer counts. None: as in the tokenizer. []: none.", default=None
    )
    marker_window: int | None = _knob(
        "Tokens back from a poll in which a marker must have completed. 0: the whole prefix (duet). paper: 256.",
        default=None,
    )
    grace_window: int | None = _knob(
        "G: tokens a rollout may run on after its marker. Paper: 150 of 3,072. None: that share of "
        "max_completion_length, at least 8.",
        default=None,
    )
    poll_interval: int = _knob("delta_poll: tokens between two marker checks. Paper: 8.", default=8)
    keep_probability: float = _knob(
        "eps_abort: probability that a marker-less rollout is kept and weighted 1/eps. Paper: 0.05.", default=0.05
    )
    entropy_threshold: float | None = _knob(
        "Entropy of the next token in nats below which an answered rollout stops before its grace window ends. 0: "
        "not by entropy. The paper gives no value. paper, duet: 0.1.",
        default=None,
    )
    threshold_window: int = _knob("W: kept rollouts in the length window. Paper: 1024.", default=1024)
    threshold_interval: int = _knob("N: steps between two refits of K1 and K2. Paper: 10.", default=10)
    threshold_weighting: str | None = _knob(
        "Weight of a length in the window: 'propensity' (1/p, duet) or 'none' (paper; K2 ratchets down).",
        default=None,
    )
    poll_quantile: float = _knob("Length quantile of K1. Paper: 0.3.", default=0.3)
    abort_quantile: float = _knob("Length quantile of K2. Paper: 0.8.", default=0.8)
    abort_answer_quantile: float | None = _knob(
        "K2 follows this quantile of the answer times, or the 0.995 quantile of rewarded ones if that is later. duet: "
        "0.95. 0: a quantile of lengths (paper).",
        default=None,
    )
    abort_answer_slack: float = _knob("Factor on both quantiles, at least 1.", default=1.25)
    poll_cold_fraction: float = _knob("K1 before the first refit, share of the maximum. Paper: 0.3.", default=0.3)
    abort_cold_fraction: float = _knob("K2 before the first refit, share of the maximum. Paper: 0.7.", default=0.7)
    extra_eos_tokens: list[str] | None = _knob(
        "Tokens that end a rollout of any method beside those that tokenizer and model declare: for a base model the "
        "end of turn of its chat template.",
        default=None,
    )
    sentinel_token_id: int | None = _knob(
        "Token id that no text uses, sampled when the gate stops a rollout. None: found in the vocabulary.",
        default=None,
    )

    # Parameters that control the update (paper, section 3.3)
    ending_reward_weight: float = _knob(
        "Weight of a reward of 1 for ending with an EOS, beside the reward functions. 0: none (paper).", default=0.0
    )
    aborted_rollouts: str | None = _knob(
        "'mask': aborted rollouts leave the gradient, kept ones weigh 1/eps (paper). 'failure': they are "
        "trained as truncated failures and every propensity is 1 (duet; the gradient of a policy cut at K2 + G).",
        default=None,
    )
    stratification: str | None = _knob(
        "s_pre: 'clip' of n_q over the mean to [stratification_floor, 1] (paper), 'exact' without the upper "
        "clip, 'none': a prompt weighs as much as it has rollouts (duet).",
        default=None,
    )
    advantage_baseline: str | None = _knob(
        "'group': the group's mean (paper). 'history': the mean of the others, shrunk toward the prompt's "
        "earlier rewards (duet, where allocate=True).",
        default=None,
    )
    advantage_cutoff: float | None = _knob(
        "With drop_zero_advantage and a history, rollouts with a smaller |advantage| get no forward pass. duet: 0.5. "
        "paper: 0.",
        default=None,
    )
    stratification_floor: float = _knob("eps_pre: lower clip of s_pre. Paper: 0.05.", default=0.05)
    drop_zero_advantage: bool | None = _knob(
        "Leave rollouts with advantage 0 out of the forward pass; they still count in N_t. Only where they cannot "
        "move the loss: beta=0, no entropy bonus, no router loss. duet: True there. paper: False.",
        default=None,
    )

    # Parameters that control a vLLM server, beside TRL's vllm_server_*
    server_weight_sync: str | None = _knob(
        "How new weights reach the server: 'nccl' (TRL's way, GPU to GPU) or 'disk' (through server_weights_dir). "
        "None: 'nccl' where the trainer runs on CUDA, else 'disk'.",
        default=None,
    )
    server_weights_dir: str | None = _knob(
        "Folder that trainer and server both see under this path, for server_weight_sync='disk'; the server's "
        "DUET_WEIGHTS_DIR. None: the trainer's own DUET_WEIGHTS_DIR.",
        default=None,
    )

    # Parameters that control identity and records
    prompt_id_column: str | None = _knob("Column that identifies a prompt. None: a hash of the prompt.", default=None)
    audit_log: bool = _knob("Write one parquet row per rollout to output_dir/duet_audit.", default=False)
    audit_columns: list[str] | None = _knob("Data-set columns copied to the audit log.", default=None)

    def __post_init__(self) -> None:
        check_types(self, DUETGRPOConfig)
        if self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {self.preset!r}.")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {sorted(METHODS)}, got {self.method!r}.")
        # The relation checks below need the batch sizes that the parent resolves; none of it loads a model.
        super().__post_init__()
        for name, value in METHODS[self.method].items():
            setattr(self, name, value)
        resolve(self)
        if self.grace_window is None and isinstance(self.max_completion_length, int):  # else refused in _check_ranges
            self.grace_window = scaled_grace_window(self.max_completion_length)
        self._check_choices()
        self._check_ranges()
        self._check_relations()
        refuse_lone_rollouts(self)
        self._check_upstream()

    def _check_choices(self) -> None:
        choices = {
            "budget_reading": ("rollouts", "reference", "tokens"),
            "allocation_solver": ("greedy", "bisection"),
            "allocation_objective": ("variance", "mixed"),
            "advantage_baseline": ("group", "history"),
            "surrogate_unseen": ("floor", "median"),
            "threshold_weighting": ("propensity", "none"),
            "aborted_rollouts": ("mask", "failure"),
            "stratification": ("clip", "exact", "none"),
            "server_weight_sync": (None, "nccl", "disk"),
        }
        for name, allowed in choices.items():
            if self.__dict__[name] not in allowed:
                raise ValueError(f"{name} must be one of {list(allowed)}, got {self.__dict__[name]!r}.")
        get_marker(self.marker, parse_delimiters(self.thought_delimiters or []))  # what cannot be compiled is an error

    def _check_ranges(self) -> None:
        for name, least in _COUNTS.items():
            value = self.__dict__[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
        finite = float("inf")
        # name: does the value lie in its range, and what the range is; a NaN lies in none
        ranges = {
            "budget_fraction": (lambda x: 0 < x <= 1, "in (0, 1]. Raise num_generations for more"),
            "keep_probability": (lambda x: 0 < x <= 1, "in (0, 1]. Use abort=False to keep everything"),
            "stratification_floor": (lambda x: 0 < x <= 1, "in (0, 1]. Use stratification='none' for no weights"),
            "entropy_threshold": (lambda x: 0 <= x < finite, "at least 0 nats; 0 switches it off"),
            "surrogate_shrinkage": (lambda x: 0 <= x < finite, "at least 0; 0 switches it off"),
            "surrogate_floor": (lambda x: 0 < x < finite, "positive"),
            "surrogate_floor_quantile": (lambda x: 0 <= x < 1, "in [0, 1); 0 switches it off"),
            "reward_decay": (lambda x: 0 <= x <= 1, "in [0, 1]; 0 forgets a prompt's rewards at once"),
            "abort_answer_quantile": (lambda x: 0 <= x < 1, "in [0, 1); 0 takes a quantile of lengths"),
            "abort_answer_slack": (lambda x: 1 <= x < finite, "at least 1"),
            "ending_reward_weight": (lambda x: 0 <= x < finite, "at least 0; 0 adds no reward"),
            "advantage_cutoff": (lambda x: 0 <= x < finite, "at least 0; 0 drops nothing but zeros"),
        }
        for name, (inside, wanted) in ranges.items():
            value = self.__dict__[name]
            if not inside(value):
                raise ValueError(f"{name} must be {wanted}; got {value}.")

    def _check_relations(self) -> None:
        for low, high in (("poll_quantile", "abort_quantile"), ("poll_cold_fraction", "abort_cold_fraction")):
            if not 0 < self.__dict__[low] < self.__dict__[high] <= 1:
                raise ValueError(
                    f"0 < {low} < {high} <= 1 must hold, got {self.__dict__[low]} and {self.__dict__[high]}: a "
                    "rollout is polled before it can be aborted."
                )
        if self.num_rollouts_min > self.num_rollouts_max:
            raise ValueError(
                f"num_rollouts_min ({self.num_rollouts_min}) is above num_rollouts_max ({self.num_rollouts_max})."
            )
        if self.num_rollouts_min * self.num_prompts > self.max_rollouts:
            raise ValueError(
                f"num_rollouts_min ({self.num_rollouts_min}) x {self.num_prompts} prompts is above max_rollouts "
                f"({self.max_rollouts}). Lower num_rollouts_min or raise max_rollouts."
            )
        if self.budget_reading == "tokens":
            least = self.num_rollouts_min * self.num_prompts
            if self.budget_tokens is None or not least <= self.budget_tokens < float("inf"):
                raise ValueError(
                    f"budget_reading='tokens' needs finite budget_tokens of at least one token for each of "
                    f"{self.num_rollouts_min} x {self.num_prompts} rollouts, got {self.budget_tokens}."
                )
        else:
            if self.budget_tokens is not None:
                raise ValueError(
                    f"budget_tokens={self.budget_tokens} is ignored by budget_reading={self.budget_reading!r}. Remove "
                    "it, or set budget_reading='tokens'."
                )
            if self.num_rollouts_min > self.budget_fraction * self.num_generations:
                raise ValueError(
                    f"num_rollouts_min ({self.num_rollouts_min}) is above the budget of budget_fraction x "
                    f"num_generations = {self.budget_fraction * self.num_generations:g} rollouts per prompt. Raise "
                    "the budget or lower num_rollouts_min."
                )
        if self.advantage_baseline == "history" and self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation={self.multi_objective_aggregation!r} has no summed reward to remember. "
                "Set advantage_baseline='group', or multi_objective_aggregation='sum_then_normalize'."
            )
        if self.audit_columns and not self.audit_log:
            raise ValueError(f"audit_columns={self.audit_columns} needs audit_log=True.")

    @property
    def num_prompts(self) -> int:
        """M, prompts of a generation step."""
        return self.generation_batch_size // self.num_generations

    @property
    def gated(self) -> bool:
        """Whether any rollout may be stopped by the gate."""
        return self.trim or self.abort

    @property
    def duet_active(self) -> bool:
        """Whether anything differs from plain GRPO."""
        return self.allocate or self.gated or self.budget_fraction < 1 or self.budget_reading == "tokens"

    def _check_upstream(self) -> None:
        if self.duet_active and self.loss_type not in ("dapo", "cispo", "vespo"):
            raise ValueError(
                f"loss_type={self.loss_type!r} does not divide by the global number of kept tokens N_t (Eq. 6). Use "
                "loss_type='dapo', 'cispo' or 'vespo'."
            )
        repeated = {"n", "seed"} & (self.generation_kwargs or {}).keys()
        if self.use_vllm and repeated:
            raise ValueError(
                f"generation_kwargs sets {sorted(repeated)}, but every rollout is a request of its own: 'n' would "
                "multiply them, and with one 'seed' all rollouts of a prompt would be the same. Remove them."
            )
        if self.use_transformers_continuous_batching:
            raise ValueError(
                "use_transformers_continuous_batching=True cannot stop single rollouts. Use use_vllm=True, or plain "
                "generate."
            )
        truncated = self.top_p < 1 or self.top_k > 0 or (self.min_p or 0) > 0
        sequence_level = self.vllm_importance_sampling_mode.startswith("sequence")
        if self.use_vllm and self.vllm_importance_sampling_correction and sequence_level and truncated:
            raise ValueError(
                f"top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p} with vllm_importance_sampling_mode="
                f"{self.vllm_importance_sampling_mode!r}: the sampler's log-probs are renormalised inside the "
                "nucleus, so the sequence ratio decays with the length and destroys the gradient. Set "
                "vllm_importance_sampling_correction=False (the paper's setting), or sample with top_p=1."
            )
