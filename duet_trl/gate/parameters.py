# SPDX-License-Identifier: Apache-2.0
"""The gate of one rollout as the one parameter of a request to an inference engine.

A JSON text under the name `duet_gate`, which `SamplingParams.extra_args` of vLLM and `vllm_xargs` of its HTTP server
both carry. A request without it runs ungated.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from .automaton import TokenAutomaton
from .replay import GateSpec
from .thoughts import Delimiters

PARAMETER = "duet_gate"

GATE_VERSION = 5
"""Goes up with every change of what the parameter means; trainer and engine must agree on it."""

MAX_EOS_IDS = 32
"""Most token ids that may end a rollout: engines keep them in rows of this width."""


@dataclass(frozen=True)
class GateSetup:
    """What the gates of a run have in common: the marker on the vocabulary of one tokenizer."""

    marker: str  # name of the configuration
    automaton: TokenAutomaton
    sentinel: int  # token id the engine samples when the gate stops a rollout
    eos_ids: tuple[int, ...]  # that end a rollout by themselves
    delimiters: Delimiters | None = None  # of the model's thoughts


@dataclass(frozen=True)
class GateRequest:
    """The gate that one request asks for; ValueError if a value has another type or is out of range."""

    spec: GateSpec
    keep: bool  # coin of the rollout
    marker: str
    sentinel: int  # token id that a forced stop generates
    eos_ids: frozenset[int]  # that end a rollout naturally
    fingerprint: str = ""  # of the marker's token automaton as the sender compiled it; empty: not compared
    weights: str = ""  # path that the engine must have loaded its weights from last; empty: not compared
    delimiters: Delimiters | None = None  # of the thoughts in which the marker does not complete
    in_thought: bool = False  # whether the rollout begins inside one
    prefix_length: int = 0  # tokens at the end of the engine's prompt that are the first of the rollout

    def __post_init__(self) -> None:
        for kind, names in _KINDS.items():
            for name in names:
                value = self.__dict__[name]
                if type(value) is not kind or (kind is int and not 0 <= value < 2**31):
                    raise ValueError(f"{name} of a gate must be {_WANTED[kind]}, got {value!r}.")
        if not all(type(token) is int and 0 <= token < 2**31 for token in self.eos_ids):
            raise ValueError(f"eos_ids of a gate must be token ids, got {set(self.eos_ids)}.")
        if not 1 <= len(self.eos_ids) <= MAX_EOS_IDS:
            raise ValueError(f"a gate may have 1 to {MAX_EOS_IDS} eos_ids, got {len(self.eos_ids)}.")
        if self.sentinel in self.eos_ids:
            raise ValueError(f"sentinel {self.sentinel} is also in eos_ids. Choose a token id that no text uses.")
        if self.in_thought and self.delimiters is None:
            raise ValueError("a rollout begins in a thought, but its gate names no delimiters. Give both.")


_KINDS = {bool: ("keep", "in_thought"), str: ("marker", "fingerprint", "weights"), int: ("sentinel", "prefix_length")}
_WANTED = {bool: "true or false", str: "a string", int: "an integer in [0, 2**31)"}


def gate_parameters(request: GateRequest) -> dict[str, str]:
    """The parameter of one rollout, for `extra_args` of vLLM's `SamplingParams` or `vllm_xargs` over HTTP.

    A request with n > 1 shares its coin among its n rollouts, so send one request per rollout. The sentinel must be in
    the request's `stop_token_ids`. An engine that differs in fingerprint or weights stops the rollout before its first
    token.
    """
    return {PARAMETER: _written(request)}


@lru_cache(maxsize=256)  # a training step has a few distinct ones
def _written(request: GateRequest) -> str:
    return json.dumps({"version": GATE_VERSION, **asdict(request), "eos_ids": sorted(request.eos_ids)})


def parse_gate_parameters(
    parameters: Mapping[str, Any] | None, stop_token_ids: Collection[int] | None = None
) -> GateRequest | None:
    """Read and check the parameter of one rollout; None if it has none.

    A ValueError names what is wrong and the remedy. The sentinel must be among the stop tokens of the request, unless
    these are None.
    """
    given = [name for name in parameters or () if name.startswith("duet_")]
    if not given:
        return None
    request = _read(str(parameters[PARAMETER]) if given == [PARAMETER] else "{}")
    if stop_token_ids is not None and request.sentinel not in stop_token_ids:
        raise ValueError(
            f"sentinel {request.sentinel} must be in stop_token_ids, or the rollout runs on. Add it there."
        )
    return request


@lru_cache(maxsize=256)
def _read(text: str) -> GateRequest:
    try:
        sent = json.loads(text)
        version = sent.pop("version", None)
        if version == GATE_VERSION:
            spec, ends, thoughts = GateSpec(**sent.pop("spec")), frozenset(sent.pop("eos_ids")), sent.pop("delimiters")
            return GateRequest(spec, eos_ids=ends, delimiters=thoughts and Delimiters(**thoughts), **sent)
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{PARAMETER} cannot be read: {type(error).__name__} {error}. Build it with "
            "duet_trl.gate.parameters.gate_parameters."
        ) from error
    raise ValueError(
        f"the gate of this engine has version {GATE_VERSION}, the request was made for "
        f"{'an older one' if version is None else repr(version)}. Install the same duet_trl for trainer and engine."
    )
