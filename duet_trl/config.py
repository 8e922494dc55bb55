# SPDX-License-Identifier: Apache-2.0
"""Every field that a user sets, checked; what one method alone reads stands in `method_kwargs`."""

import json
import math
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Annotated, Any

from trl import GRPOConfig

from .field_types import (
    Acts,
    Unread,
    as_given,
    at_least,
    check_rules,
    check_types,
    declared,
    knob,
    one_of,
    read_options,
)
from .gate.markers import get_marker
from .gate.thoughts import parse_delimiters
from .gate.thresholds import scaled_grace_window
from .methods import METHOD_FIELDS, METHODS
from .update.trust_region import CUT_FIELDS, CUTS, DESIRED_KL, cut_batch

_PARENTS = {
    "max_completion_length": at_least(1),
    "scale_rewards": one_of("group", "batch", "none"),
    "loss_type": one_of("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "luspo", "sapo", "vespo"),
    "multi_objective_aggregation": one_of("sum_then_normalize", "normalize_then_sum"),
}
"""What values of TRL's own fields must be."""
_GATED = Acts(lambda v: v.method == "own" or v.trim or v.abort, "trim=True or abort=True")
_ON_SERVER = Acts(lambda v: v.use_vllm and v.vllm_mode == "server", "use_vllm=True and vllm_mode='server'")

_OPEN = sorted({*METHOD_FIELDS, *CUT_FIELDS, "desired_kl", "generation_batch_size"})
"""Fields that may hold something else than what was given."""


def _chosen(name: str, help_text: str) -> Any:
    """A field that only some methods read, with the default of each."""
    methods: dict[str, list[str]] = {}
    for method, entry in METHODS.items():
        if entry.defaults.get(name) is not None:
            methods.setdefault(str(entry.defaults[name]), []).append(method)
    defaults = "; ".join(f"{default} ({', '.join(readers)})" for default, readers in methods.items())
    return knob(f"{help_text} Default: {defaults}.")


def _options_help() -> str:
    takers: dict[tuple[str, ...], list[str]] = {}
    for method, entry in METHODS.items():
        takers.setdefault(tuple(one.name for one in fields(entry.options)), []).append(method)
    lists = [f"{' and '.join(methods)}: {', '.join(names) or 'none'}." for names, methods in takers.items()]
    meaning = f"What the method alone reads, a mapping; as JSON on the command line. {' '.join(lists)}"
    return f"{meaning} See docs/configuration.md."


def _several_updates(values: Any) -> bool:
    return values.gradient_accumulation_steps % (values.steps_per_generation * values.num_iterations) != 0


def _larger_steps() -> str:
    return "".join(f", {one.max_batches} of them under {name}" for name, one in METHODS.items() if one.max_batches > 1)


@dataclass
class DUETGRPOConfig(GRPOConfig):
    """Configuration of [`DUETGRPOTrainer`]; its fields are described by their `help` and in `docs/configuration.md`.

    Everything of [`~trl.GRPOConfig`] stays as it is. `num_generations` becomes the *average* number of rollouts per
    prompt at `budget_fraction=1`, and `per_device_train_batch_size` the maximum rollouts of a micro-batch. A field
    whose default is `None` takes the value of the chosen `method`; after construction it holds that value. Setting
    one that cannot have an effect under the method is an error.

    Attributes:
        options: The resolved `method_kwargs`, a frozen dataclass of the method.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "method_kwargs", "filled_in"]

    method: str = knob(f"Method of training: {', '.join(METHODS)}. paper: the text of Algorithm 1.", default="duet")
    method_kwargs: dict[str, Any] | str | None = knob(_options_help())
    allocate: Annotated[bool | None, Unread(False)] = _chosen(
        "allocate", "Uneven rollout counts (paper, section 3.1). False: as many for every prompt."
    )
    trim: Annotated[bool | None, Unread(False)] = _chosen(
        "trim", "Stop a rollout shortly after its answer marker (section 3.2)."
    )
    abort: Annotated[bool | None, Unread(False)] = _chosen(
        "abort", "Abort rollouts without a marker at K2 + G (section 3.2)."
    )

    # Parameters that control the budget (paper, sections 2 and 3.1)
    budget_fraction: Annotated[
        float | None,
        (lambda x: 0 < x <= 1, "in (0, 1]. Raise num_generations for more; got {}"),
        Acts(lambda v: v.budget_reading != "tokens", "budget_reading='rollouts' or 'reference'"),
        Unread(1.0),
    ] = _chosen("budget_fraction", "b: share of the full budget, in (0, 1]. Paper: 0.25, 0.5, 1.")
    budget_reading: Annotated[str | None, one_of("rollouts", "reference", "tokens"), Unread("rollouts")] = _chosen(
        "budget_reading",
        "What B means. 'rollouts': b x num_generations rollouts per prompt at current expected lengths (reproduces "
        "the paper). 'reference': b x the token cost of uniform GRPO measured in the first epoch, then frozen. "
        "'tokens': budget_tokens.",
    )
    budget_tokens: Annotated[float | None, Acts(lambda v: v.budget_reading == "tokens", "budget_reading='tokens'")] = (
        knob("B in tokens per step, with budget_reading='tokens'.")
    )
    num_rollouts_min: Annotated[
        int | None,
        at_least(1),
        Acts(
            lambda v: v.method == "knapsack" or v.allocate or v.budget_reading != "rollouts",
            "allocate=True or a budget_reading in tokens",
        ),
    ] = knob(
        "n_min: minimum rollouts per prompt. None: 2 under knapsack, 2 under duet where the budget averages more than "
        "2, else 1."
    )
    num_rollouts_max: Annotated[int | None, at_least(1)] = _chosen(
        "num_rollouts_max", "n_max: maximum rollouts per prompt. Paper: range up to 32."
    )
    max_rollouts: Annotated[int | None, at_least(1)] = knob(
        "Maximum rollouts of one generation step over all processes: the memory guarantee. None: the generation "
        f"batch{_larger_steps()}."
    )

    # Parameters that control the gate (paper, section 3.2)
    marker: Annotated[str | None, _GATED] = _chosen(
        "marker",
        "m: what an answer looks like: 'math', 'math_paragraph' (the paper's literal form), 'code', 'qa' or "
        "'opening...closing' ('ANSWER: ...': to the end of the line).",
    )
    thought_delimiters: list[str] | None = knob(
        "What opens and closes a thought, in which no answer counts: two texts. None: as in the tokenizer. []: none."
    )
    grace_window: Annotated[int | None, at_least(0), _GATED] = knob(
        "G: tokens a rollout may run on after its marker, and past K2. Paper: 150 of 3,072. None: that share of "
        "max_completion_length, at least 8."
    )
    keep_probability: Annotated[
        float | None,
        (lambda x: 0 < x <= 1, "in (0, 1]. Use abort=False to keep everything; got {}"),
        Acts(lambda v: v.abort, "abort=True"),
    ] = _chosen(
        "keep_probability",
        "eps_abort: probability that a rollout without a marker is kept, in (0, 1]. Paper: 0.05. duet sets it itself.",
    )
    sentinel_token_id: Annotated[int | None, _GATED] = knob(
        "Token id that no text uses, sampled when the gate stops a rollout. None: found in the vocabulary."
    )

    # Parameters of every method
    extra_eos_tokens: list[str] | None = knob(
        "Tokens that end a rollout beside those that tokenizer and model declare: for a base model the end of turn of "
        "its chat template."
    )
    ending_reward_weight: Annotated[float, (lambda x: 0 <= x < math.inf, "at least 0; 0 adds no reward; got {}")] = (
        knob(
            "What a rollout earns for ending with an EOS, as a share of what the reward functions pay it, if that is "
            "above 0. Logged as rewards/ending_reward/mean. 0: nothing (paper); duet teaches the ending by itself.",
            default=0.0,
        )
    )
    exclude_zero_variance_groups: Annotated[
        bool,
        Acts(
            lambda v: v.beta == 0 or not v.exclude_zero_variance_groups,
            "beta=0, as the KL term of these rollouts counts",
        ),
    ] = knob(
        "Prompts whose rewards are all equal leave the divisor of the loss (trl#6365). False: they count (TRL).",
        default=False,
    )
    updates: Annotated[str, one_of("once", *CUTS)] = knob(
        "Updates of a batch of rollouts. 'once': as num_iterations and steps_per_generation say (TRL: one). "
        "'several': two passes in two mini-batches each, inside a trust region: the learning rate, which starts at "
        "learning_rate, follows desired_kl, and an update that would go too far is skipped or pulled back. Takes the "
        "memory of one more copy of the trained weights. 'sfpo': three fast updates, a step back and a slow one, as "
        "SFPO has it. An optimizer step (max_steps) is one update.",
        default="once",
    )
    desired_kl: Annotated[
        float | None,
        (lambda x: 0 < x < math.inf, "above 0, nats per token; got {}"),
        Acts(lambda v: v.updates == "several", "updates='several'"),
    ] = knob(
        "With updates='several': KL divergence, nats per token, of the policy before the updates of a batch from the "
        f"one after. None: {DESIRED_KL:g}."
    )
    old_logps: Annotated[
        str | None,
        one_of("trainer", "engine"),
        Acts(
            lambda v: v.use_vllm and (v.vllm_importance_sampling_correction or _several_updates(v)),
            "use_vllm=True, where TRL computes log-probs before the updates: with vllm_importance_sampling_"
            "correction, num_iterations above 1, or gradient_accumulation_steps below steps_per_generation",
        ),
    ] = knob(
        "Log-probs before the updates of a batch, in the ratio that is clipped: 'trainer', a forward pass over the "
        "batch (TRL's way), or 'engine', those that vLLM drew the tokens with, without one. None: 'trainer'."
    )

    # Parameters that control a vLLM server, beside TRL's vllm_server_*
    server_weight_sync: Annotated[str | None, one_of("nccl", "disk"), _ON_SERVER] = knob(
        "How new weights reach the server: 'nccl' (TRL's way, GPU to GPU) or 'disk' (through server_weights_dir). "
        "None: 'nccl' where the trainer runs on CUDA, else 'disk'."
    )
    server_weights_dir: Annotated[
        str | None,
        Acts(
            lambda v: _ON_SERVER.when(v) and v.server_weight_sync != "nccl",
            f"{_ON_SERVER.condition}, and server_weight_sync other than 'nccl'",
        ),
    ] = knob(
        "Folder that trainer and server both see under this path, for server_weight_sync='disk'. None: the "
        "environment's DUET_WEIGHTS_DIR."
    )

    # Parameters that control identity and records
    prompt_id_column: str | None = knob(
        "Data-set column that identifies a prompt across epochs. None: a hash of the prompt."
    )
    audit_log: bool = knob("Write one parquet row per rollout to output_dir/duet_audit.", default=False)
    audit_columns: Annotated[list[str] | None, Acts(lambda v: v.audit_log, "audit_log=True")] = knob(
        "Data-set columns copied to the audit log, such as level or subject."
    )
    filled_in: dict[str, Any] | str | None = knob("Not to be set: what was given for a field, and what it holds.")

    def __post_init__(self) -> None:
        self._read_json()
        self.__dict__ |= as_given(self.__dict__, self.filled_in)
        given = dict(self.__dict__)
        check_types(self.__dict__, {name: one.kind for name, one in DECLARED.items()})
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {sorted(METHODS)}, got {self.method!r}.")
        check_rules(self.__dict__, {"updates": DECLARED["updates"].rule})
        cut_batch(self)
        # The relation checks below need the batch sizes that the parent resolves; none of it loads a model.
        super().__post_init__()
        if self.max_completion_length is None:
            raise ValueError("max_completion_length must be an integer of at least 1, got None.")
        check_rules(self.__dict__, _PARENTS | {name: one.rule for name, one in DECLARED.items()})
        self._resolve()
        if self.updates == "several" and self.desired_kl is None:
            self.desired_kl = DESIRED_KL
        self._check_relations()
        METHODS[self.method].check(self, self.options)
        self._check_upstream()
        self.filled_in = {name: [given[name], now] for name in _OPEN if given[name] != (now := self.__dict__[name])}

    def __getstate__(self) -> dict[str, Any]:
        """Without the token: the Trainer pushes a pickle of the configuration with the model, `training_args.bin`."""
        return self.__dict__ | {"hub_token": None}

    def _read_json(self) -> None:
        if not isinstance(self.method_kwargs, str):
            return
        try:
            self.method_kwargs = json.loads(self.method_kwargs)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"method_kwargs is no JSON: {error}, got {self.method_kwargs!r}. Write '{{\"name\": value}}'."
            ) from error

    def _resolve(self) -> None:
        """Fill in what the user left open, and refuse what was set and cannot have an effect."""
        entry = METHODS[self.method]
        given = {name: value for name in DECLARED if (value := self.__dict__[name]) is not None}
        for name in sorted(given.keys() & METHOD_FIELDS - entry.reads):
            readers = [other for other, one in METHODS.items() if name in one.reads]
            raise ValueError(
                f"{name}={given[name]!r} cannot have an effect under method={self.method!r}, which does not read it. "
                f"Remove it, or choose a method that does: {readers}."
            )
        read = dict(entry.defaults) | {"max_rollouts": entry.max_batches * self.generation_batch_size}
        if "grace_window" in read:
            read["grace_window"] = scaled_grace_window(self.max_completion_length)
        for name in METHOD_FIELDS - given.keys():
            setattr(self, name, read[name] if name in read else DECLARED[name].unread.value)
        self.options = read_options(entry.options, self.method_kwargs, self.method)
        self.options = entry.settle(self, self.options)
        chosen = given | {name: value for name, value in (self.method_kwargs or {}).items() if value is not None}
        resolved = SimpleNamespace(**self.__dict__, **self.options.__dict__)
        acts = {name: one.acts for name, one in DECLARED.items()}
        acts |= {one.name: one.metadata["acts"] for one in fields(self.options)}
        for name in sorted(chosen):
            if acts[name] is not None and not acts[name].when(resolved):
                raise ValueError(
                    f"{name}={chosen[name]!r} cannot have an effect under method={self.method!r} as it is set: it "
                    f"acts only with {acts[name].condition}. Remove it, or set that."
                )

    def _check_relations(self) -> None:
        delimiters = parse_delimiters(self.thought_delimiters or [])
        if self.marker is not None:
            get_marker(self.marker, delimiters)  # what cannot be compiled is an error
        least, most = self.num_rollouts_min or 1, self.num_rollouts_max
        if most is not None and least > most:
            raise ValueError(f"num_rollouts_min ({least}) is above num_rollouts_max ({most}).")
        if least * self.num_prompts > self.max_rollouts:
            raise ValueError(
                f"num_rollouts_min ({least}) x {self.num_prompts} prompts is above max_rollouts "
                f"({self.max_rollouts}). Lower num_rollouts_min or raise max_rollouts."
            )
        if self.budget_reading == "tokens":
            if self.budget_tokens is None or not least * self.num_prompts <= self.budget_tokens < math.inf:
                raise ValueError(
                    f"budget_reading='tokens' needs finite budget_tokens of at least one token for each of "
                    f"{least} x {self.num_prompts} rollouts, got {self.budget_tokens}."
                )
        elif least > self.budget_fraction * self.num_generations:
            raise ValueError(
                f"num_rollouts_min ({least}) is above the budget of budget_fraction x num_generations = "
                f"{self.budget_fraction * self.num_generations:g} rollouts per prompt. Raise the budget or lower "
                "num_rollouts_min."
            )

    @property
    def num_prompts(self) -> int:
        """M, prompts of a generation step."""
        return self.generation_batch_size // self.num_generations

    @property
    def num_candidates(self) -> int:
        """Prompts that compete for the M visits of a generation step; M: none but those that the sampler draws."""
        return round(getattr(self.options, "prompt_candidates", 1) * self.num_prompts)

    @property
    def gated(self) -> bool:
        """Whether any rollout may be stopped by the gate."""
        return self.trim or self.abort

    @property
    def parts_on(self) -> bool:
        """Whether counts, stops, the budget or who is visited differ from those of plain GRPO."""
        parts = self.allocate or self.gated or self.budget_fraction < 1 or self.budget_reading == "tokens"
        return parts or self.num_candidates > self.num_prompts

    @property
    def duet_active(self) -> bool:
        """Whether anything differs from plain GRPO."""
        return self.parts_on or self.method not in ("duet", "paper", "grpo")

    def _check_upstream(self) -> None:
        if self.updates != "once" and self.deepspeed_plugin is not None:
            raise ValueError(
                f"updates={self.updates!r} measures and moves weights, which DeepSpeed keeps to itself. Use FSDP2, or "
                "updates='once'."
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
        sequence_level = self.vllm_importance_sampling_mode.startswith("sequence")
        corrected = self.use_vllm and self.vllm_importance_sampling_correction and sequence_level
        if (corrected or self.old_logps == "engine") and (self.top_p < 1 or self.top_k > 0 or (self.min_p or 0) > 0):
            found = f"with vllm_importance_sampling_mode={self.vllm_importance_sampling_mode!r}"
            remedy = "vllm_importance_sampling_correction=False (the paper's setting)"
            if not corrected:
                found, remedy = "with old_logps='engine'", "old_logps='trainer'"
            raise ValueError(
                f"top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p} {found}: the sampler's log-probs are "
                f"renormalised inside the nucleus, and the ratio would be that of two distributions. Set {remedy}, or "
                "sample with top_p=1."
            )


DECLARED = declared(DUETGRPOConfig)
"""What the annotation of each field above says."""
