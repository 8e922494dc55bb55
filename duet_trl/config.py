# SPDX-License-Identifier: Apache-2.0
"""Every field that a user sets, with its checks; options of a single method are in `method_kwargs`."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from trl import GRPOConfig

from .field_types import (
    Acts,
    Follows,
    as_given,
    at_least,
    check_rule,
    check_types,
    config_field,
    declarations,
    one_of,
    read_json,
    read_options,
    refuse_misplaced,
    settled,
)
from .gate.markers import get_marker
from .gate.thoughts import parse_delimiters
from .gate.thresholds import scaled_grace_window
from .methods import METHODS
from .upstream import check_upstream

_PARENTS = {
    "max_completion_length": at_least(1),
    "scale_rewards": one_of("group", "batch", "none"),
    "loss_type": one_of("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "luspo", "sapo", "vespo"),
    "multi_objective_aggregation": one_of("sum_then_normalize", "normalize_then_sum"),
}
"""Rules for the values of TRL's own fields."""
_GATED = Acts(lambda v: v.method == "own" or v.trim or v.abort, "trim=True or abort=True")
_ON_SERVER = Acts(lambda v: v.use_vllm and v.vllm_mode == "server", "use_vllm=True and vllm_mode='server'")
_DUETS = ("duet", "paper")
_ON = dict.fromkeys(_DUETS, True)


def _batches(count: int) -> Follows:
    words = "the generation batch" if count == 1 else f"{count} generation batches"
    return Follows(lambda c: count * c.generation_batch_size, words)


_ONE_BATCH = _batches(1)
_TWO_OF_MORE = Follows(  # a lone rollout has nothing to be compared with
    lambda c: 2 if c.budget_fraction * c.num_generations > 2 else 1, "2 where the budget averages more than 2, else 1"
)
_GRACE = Follows(lambda c: scaled_grace_window(c.max_completion_length), "that share of the length limit, at least 8")


@dataclass
class DUETGRPOConfig(GRPOConfig):
    """Configuration of [`DUETGRPOTrainer`]; its fields are described by their `help` and in `docs/configuration.md`.

    Everything in [`~trl.GRPOConfig`] stays as it is. `num_generations` becomes the *average* number of rollouts per
    prompt at `budget_fraction=1`, and `per_device_train_batch_size` the maximum rollouts of a micro-batch. A field
    whose default is `None` takes the value of the chosen `method`; after construction it holds that value. Setting
    one that cannot have an effect under the method is an error.

    Attributes:
        options: The resolved `method_kwargs`, a frozen dataclass of the method.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "method_kwargs", "filled_in"]

    method: str = config_field(
        f"Method of training: {', '.join(METHODS)}. paper: the text of Algorithm 1.", default="duet"
    )
    method_kwargs: dict[str, Any] | str | None = config_field(
        "Options that only the chosen method reads (docs/configuration.md), a mapping; JSON on the command line."
    )
    allocate: bool | None = config_field(
        "Uneven rollout counts (paper, section 3.1). False: the same for every prompt.",
        methods={"paper": True},
        unread=False,
    )
    trim: bool | None = config_field(
        "Stop a rollout shortly after its answer marker (section 3.2).", methods=_ON, unread=False
    )
    abort: bool | None = config_field(
        "Abort rollouts without a marker at K2 + G (section 3.2).", methods=_ON, unread=False
    )

    # Parameters that control the budget (paper, sections 2 and 3.1)
    budget_fraction: float | None = config_field(
        "b: share of the full budget, in (0, 1]. Paper: 0.25, 0.5, 1.",
        rule=(lambda x: 0 < x <= 1, "in (0, 1]. Raise num_generations for more; got {}"),
        acts=Acts(lambda v: v.budget_reading != "tokens", "budget_reading='rollouts'"),
        methods=dict.fromkeys(_DUETS, 0.5) | dict.fromkeys(("knapsack", "vip"), 1.0),
        unread=1.0,
    )
    budget_reading: str | None = config_field(
        "Meaning of B: 'rollouts', b x num_generations rollouts per prompt at current expected lengths (reproduces "
        "the paper), or 'tokens', budget_tokens.",
        rule=one_of("rollouts", "tokens"),
        methods=dict.fromkeys(_DUETS, "rollouts"),
        unread="rollouts",
    )
    budget_tokens: float | None = config_field(
        "B in tokens per step, with budget_reading='tokens'.",
        acts=Acts(lambda v: v.budget_reading == "tokens", "budget_reading='tokens'"),
        methods=dict.fromkeys(_DUETS),
    )
    num_rollouts_min: int | None = config_field(
        "n_min: minimum rollouts per prompt.",
        rule=at_least(1),
        acts=Acts(
            lambda v: v.method == "knapsack" or v.allocate or v.budget_reading == "tokens",
            "method='paper' with allocate=True, or budget_reading='tokens'",
        ),
        methods={"duet": _TWO_OF_MORE, "paper": 1, "knapsack": 2},
    )
    num_rollouts_max: int | None = config_field(
        "n_max: maximum rollouts per prompt. Paper: range up to 32.",
        rule=at_least(1),
        methods=dict.fromkeys(_DUETS, 32) | {"knapsack": 128},
    )
    max_rollouts: int | None = config_field(
        "Maximum rollouts of one generation step over all processes: the memory guarantee.",
        rule=at_least(1),
        methods=dict.fromkeys((*_DUETS, "own"), _ONE_BATCH)
        | {"dapo": _batches(10), "greso": _batches(4), "reinforce_ada": _batches(4), "arrol": _batches(2)},
        unread=_ONE_BATCH,
    )

    # Parameters that control the gate (paper, section 3.2)
    marker: str | None = config_field(
        "m: form of an answer: 'math', 'math_paragraph' (the paper's literal form), 'code', 'qa' or "
        "'opening...closing' ('ANSWER: ...': to the end of the line).",
        acts=_GATED,
        methods={"duet": "math", "paper": "math_paragraph", "own": "math"},
    )
    thought_delimiters: list[str] | None = config_field(
        "Two strings that open and close a thought, in which no answer counts. None: as in the tokenizer. []: none."
    )
    grace_window: int | None = config_field(
        "G: tokens a rollout may continue after its marker, and past K2. Paper: 150 of 3,072.",
        rule=at_least(0),
        acts=_GATED,
        methods=dict.fromkeys(_DUETS, _GRACE),
    )
    keep_probability: float | None = config_field(
        "eps_abort: probability that a rollout without a marker is kept, in (0, 1]. Paper: 0.05. duet sets it itself.",
        rule=(lambda x: 0 < x <= 1, "in (0, 1]. Use abort=False to keep everything; got {}"),
        acts=Acts(lambda v: v.abort, "abort=True"),
        methods={"paper": 0.05},
    )
    sentinel_token_id: int | None = config_field(
        "Token id that no text uses, sampled when the gate stops a rollout. None: found in the vocabulary.",
        acts=_GATED,
        methods=dict.fromkeys((*_DUETS, "own")),
    )

    # Parameters of every method
    extra_eos_tokens: list[str] | None = config_field(
        "Tokens that end a rollout besides those that tokenizer and model declare: for a base model, the end-of-turn "
        "token of its chat template."
    )
    ending_reward_weight: float = config_field(
        "Extra reward for ending with an EOS, as a share of the rollout's reward, if that is above 0. 0: none "
        "(paper). duet teaches the ending by itself.",
        default=0.0,
        rule=(lambda x: 0 <= x < math.inf, "at least 0; 0 adds no reward; got {}"),
    )
    exclude_zero_variance_groups: bool = config_field(
        "Leave prompts whose rewards are all equal out of the divisor of the loss (trl#6365). False: as in TRL.",
        default=False,
        acts=Acts(lambda v: v.beta == 0 or not v.exclude_zero_variance_groups, "beta=0: their KL term would count"),
    )
    shared_prompts: bool | None = config_field(
        "Rows of one prompt in a micro-batch share its forward pass in training. None: where the model "
        "supports it and it pays. True: an error where the model does not.",
        acts=Acts(lambda v: v.per_device_train_batch_size > 1, "per_device_train_batch_size above 1"),
    )

    # Parameters that control a vLLM server, besides TRL's vllm_server_*
    engine: str | None = config_field(
        "Where the gate runs: 'vllm', in the server; 'openai', on the streams of a server without it. None: 'vllm'.",
        rule=one_of("vllm", "openai"),
        acts=_ON_SERVER,
    )
    server_weight_sync: str | None = config_field(
        "How new weights reach the server: 'nccl' (as in TRL, GPU to GPU) or 'disk' (through server_weights_dir). "
        "None: 'nccl' where the trainer runs on CUDA, else 'disk'.",
        rule=one_of("nccl", "disk"),
        acts=_ON_SERVER,
    )
    server_weights_dir: str | None = config_field(
        "Folder that trainer and server both see under this path, for server_weight_sync='disk'. None: the "
        "environment's DUET_WEIGHTS_DIR.",
        acts=Acts(
            lambda v: _ON_SERVER.when(v) and v.server_weight_sync != "nccl",
            f"{_ON_SERVER.condition}, and server_weight_sync other than 'nccl'",
        ),
    )

    overlap: bool = config_field(
        "Let the server generate the next step's rollouts, with the current weights, while this step trains.", False
    )

    # Parameters that control identity and records
    prompt_id_column: str | None = config_field(
        "Data-set column that identifies a prompt across epochs. None: a hash of the prompt."
    )
    audit_log: bool = config_field("Write one parquet row per rollout to output_dir/duet_audit.", default=False)
    audit_columns: list[str] | None = config_field(
        "Data-set columns copied to the audit log, such as level or subject.",
        acts=Acts(lambda v: v.audit_log, "audit_log=True"),
    )
    filled_in: dict[str, Any] | str | None = config_field(
        "Internal, do not set: what a field was given, and what it holds."
    )

    def __new__(cls, *args: Any, **given: Any) -> "DUETGRPOConfig":
        """Refuse unexpected keywords before dataclasses do, where the replacement is known."""
        refuse_misplaced(given, cls, {name: entry.options for name, entry in METHODS.items()})
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.method_kwargs = read_json(self.method_kwargs)
        self.__dict__ |= as_given(self.__dict__, self.filled_in)
        given = dict(self.__dict__)
        check_types(self.__dict__, DUETGRPOConfig.__annotations__)
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {sorted(METHODS)}, got {self.method!r}.")
        # The relation checks below need the batch sizes that the parent resolves; none of it loads a model.
        super().__post_init__()
        if self.max_completion_length is None:
            raise ValueError("max_completion_length must be an integer of at least 1, got None.")
        for name, rule in (_PARENTS | {name: said.rule for name, said in DECLARED.items()}).items():
            check_rule(name, self.__dict__[name], rule)
        self._resolve()
        self._check_relations()
        METHODS[self.method].check(self)
        check_upstream(self)
        self.filled_in = {name: [given[name], now] for name in _OPEN if given[name] != (now := self.__dict__[name])}

    def __getstate__(self) -> dict[str, Any]:
        """Without the token: the Trainer pushes a pickle of the configuration with the model, `training_args.bin`."""
        return self.__dict__ | {"hub_token": None}

    def _resolve(self) -> None:
        """Fill in what the user left unset, and refuse what was set but cannot have an effect."""
        given = {name: value for name in DECLARED if (value := self.__dict__[name]) is not None}
        for name in sorted(given.keys() & METHOD_FIELDS - reads(self.method)):
            raise ValueError(
                f"{name}={given[name]!r} cannot have an effect under method={self.method!r}, which does not read it. "
                f"Remove it, or choose a method that does: {[one for one in METHODS if name in reads(one)]}."
            )
        left = {name: value for name, value in defaults_of(self.method).items() if name not in given}
        self.__dict__ |= left
        self.__dict__ |= {name: value.of(self) for name, value in left.items() if isinstance(value, Follows)}
        self.options = read_options(METHODS[self.method].options, self.method_kwargs, self.method)
        self.options = settled(self.options, self)
        chosen = given | {name: value for name, value in (self.method_kwargs or {}).items() if value is not None}
        resolved = SimpleNamespace(**self.__dict__, **self.options.__dict__)
        acts = {name: said.acts for name, said in (DECLARED | declarations(self.options)).items()}
        for name in sorted(chosen):
            if acts[name] is not None and not acts[name].when(resolved):
                raise ValueError(
                    f"{name}={chosen[name]!r} cannot have an effect under method={self.method!r} as it is set: it "
                    f"acts only with {acts[name].condition}. Remove it, or set that."
                )

    def _check_relations(self) -> None:
        delimiters = parse_delimiters(self.thought_delimiters or [])
        if self.marker is not None:
            get_marker(self.marker, delimiters)  # raises if it cannot be compiled
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
    def gated(self) -> bool:
        """Whether any rollout may be stopped by the gate."""
        return self.trim or self.abort

    @property
    def duet_active(self) -> bool:
        """Whether counts, stops, the budget or the method differ from plain GRPO."""
        parts = self.allocate or self.gated or self.budget_fraction < 1 or self.budget_reading == "tokens"
        return parts or self.method not in ("duet", "paper", "grpo")


DECLARED = declarations(DUETGRPOConfig)
"""The declaration of each field above, by name."""
METHOD_FIELDS = frozenset(name for name, said in DECLARED.items() if said.methods)
"""Fields that some methods read and others do not. Every method reads the other fields."""
_OPEN = sorted({*METHOD_FIELDS, "steps_per_generation", "generation_batch_size"})
"""Fields that may hold something other than what was given."""


def reads(method: str) -> frozenset[str]:
    """Fields of `METHOD_FIELDS` that a method reads; setting another one is an error."""
    return frozenset(name for name in METHOD_FIELDS if method in DECLARED[name].methods)


def defaults_of(method: str) -> dict[str, Any]:
    """Default of each of `METHOD_FIELDS` under a method: a value, or what it `Follows` from."""
    return {name: DECLARED[name].methods.get(method, DECLARED[name].unread) for name in sorted(METHOD_FIELDS)}
