# SPDX-License-Identifier: Apache-2.0
"""The gate of one rollout as request parameters of an inference engine.

Flat numbers and strings under `duet_` names, because that is what `SamplingParams.extra_args` of vLLM and
`vllm_xargs` of its HTTP server both carry. All of them or none: a request without any runs ungated.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .automaton import TokenAutomaton
from .replay import GateSpec
from .thoughts import Delimiters, parse_delimiters

PREFIX = "duet_"

GATE_VERSION = 4
"""Goes up with every change of what the parameters mean; trainer and engine must agree on it."""

MAX_EOS_IDS = 32
"""Most token ids that may end a rollout: engines keep them in rows of this width."""

_COUNTS = {
    "duet_poll_threshold": 1,
    "duet_abort_threshold": 1,
    "duet_grace_window": 0,
    "duet_poll_interval": 1,
    "duet_window": 0,
    "duet_sentinel": 0,
    "duet_prefix": 0,
}
"""Integer parameters and their least values."""

_CHOICES = {
    "duet_at_gate": ("keep", "abort", "off"),
    "duet_trim": ("on", "off"),
    "duet_begins": ("in answer", "in thought"),
}
"""Words rather than booleans: over HTTP a boolean becomes 1."""

_LARGEST = 2**31 - 1

_NAMES = frozenset(
    {*_COUNTS, *_CHOICES, "duet_version", "duet_marker", "duet_entropy_threshold"}
    | {"duet_eos", "duet_thoughts", "duet_fingerprint", "duet_weights"}
)


@dataclass(frozen=True)
class GateSetup:
    """What the gates of a run have in common: the marker on the vocabulary of one tokenizer."""

    marker: str  # name or pattern of the configuration
    automaton: TokenAutomaton
    sentinel: int  # token id the engine samples when the gate stops a rollout
    eos_ids: tuple[int, ...]  # that end a rollout by themselves
    delimiters: Delimiters | None = None  # of the model's thoughts


@dataclass(frozen=True)
class GateRequest:
    """The gate that one request asks for."""

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


def gate_parameters(
    spec: GateSpec, marker: str, keep: bool, sentinel: int, eos_ids: Sequence[int], **more: Any
) -> dict[str, Any]:
    """Request parameters of one rollout; `parse_gate_parameters` reads them back.

    A request with n > 1 shares its coin among its n rollouts, so send one request per rollout. The arguments are the
    attributes of `GateRequest`; the sentinel must be in the request's `stop_token_ids`. An engine that differs in
    fingerprint or weights stops the rollout before its first token.

    Returns:
        dict[str, Any]: For `extra_args` of vLLM's `SamplingParams`, or for `vllm_xargs` over HTTP.
    """
    request = GateRequest(spec, keep, marker, sentinel, frozenset(eos_ids), **more)
    return {
        "duet_version": GATE_VERSION,
        "duet_marker": marker,
        "duet_poll_threshold": int(spec.poll_threshold),
        "duet_abort_threshold": int(spec.abort_threshold),
        "duet_grace_window": int(spec.grace_window),
        "duet_poll_interval": int(spec.poll_interval),
        "duet_at_gate": ("keep" if keep else "abort") if spec.abort else "off",
        "duet_trim": "on" if spec.trim else "off",
        "duet_entropy_threshold": float(spec.entropy_threshold),
        "duet_window": int(spec.window or 0),
        "duet_sentinel": int(sentinel),
        "duet_eos": [int(token) for token in eos_ids],
        "duet_thoughts": [] if request.delimiters is None else list(request.delimiters.parts),
        "duet_begins": "in thought" if request.in_thought else "in answer",
        "duet_fingerprint": request.fingerprint,
        "duet_weights": request.weights,
        "duet_prefix": int(request.prefix_length),
    }


def parse_gate_parameters(
    parameters: Mapping[str, Any] | None, stop_token_ids: Collection[int] | None = None
) -> GateRequest | None:
    """Read and check the request parameters of one rollout; None if it has no `duet_` parameter.

    A ValueError names what is missing, unknown, of the wrong type or out of range, and the remedy. The sentinel must
    be among the stop tokens of the request, unless these are None.
    """
    given = {name: value for name, value in (parameters or {}).items() if name.startswith(PREFIX)}
    if not given:
        return None
    _check_version(given)
    if given.keys() != _NAMES:
        unknown, missing = sorted(given.keys() - _NAMES), sorted(_NAMES - given.keys())
        raise ValueError(
            f"duet_ parameters must be given all or none: unknown {unknown}, missing {missing}. "
            "Build them with duet_trl.gate.parameters.gate_parameters."
        )
    counts = {name: _count(name, given[name], least) for name, least in _COUNTS.items()}
    words = {
        name: _checked(name, given[name], given[name] in choices, f"one of {', '.join(map(repr, choices))}")
        for name, choices in _CHOICES.items()
    }
    texts = {
        name: _checked(name, given[name], isinstance(given[name], str), "a string")
        for name in ("duet_marker", "duet_fingerprint", "duet_weights")
    }
    if not texts["duet_marker"]:
        raise ValueError(f"duet_marker must be the name of a marker, got {given['duet_marker']!r}.")
    sentinel, eos_ids = counts["duet_sentinel"], _tokens("duet_eos", given["duet_eos"])
    if sentinel in eos_ids:
        raise ValueError(f"duet_sentinel {sentinel} is also in duet_eos. Choose a token id that no text uses.")
    if stop_token_ids is not None and sentinel not in stop_token_ids:
        raise ValueError(f"duet_sentinel {sentinel} must be in stop_token_ids, or the rollout runs on. Add it there.")
    delimiters, in_thought = parse_delimiters(given["duet_thoughts"]), words["duet_begins"] == "in thought"
    if in_thought and delimiters is None:
        raise ValueError("duet_begins is 'in thought', but duet_thoughts names no delimiters. Give both.")
    spec = GateSpec(
        poll_threshold=counts["duet_poll_threshold"],
        abort_threshold=counts["duet_abort_threshold"],
        grace_window=counts["duet_grace_window"],
        poll_interval=counts["duet_poll_interval"],
        trim=words["duet_trim"] == "on",
        abort=words["duet_at_gate"] != "off",
        entropy_threshold=_number("duet_entropy_threshold", given["duet_entropy_threshold"]),
        window=counts["duet_window"] or None,
    )
    return GateRequest(
        spec=spec,
        keep=words["duet_at_gate"] == "keep",
        marker=texts["duet_marker"],
        sentinel=sentinel,
        eos_ids=eos_ids,
        fingerprint=texts["duet_fingerprint"],
        weights=texts["duet_weights"],
        delimiters=delimiters,
        in_thought=in_thought,
        prefix_length=counts["duet_prefix"],
    )


def _check_version(given: Mapping[str, Any]) -> None:
    version = given.get("duet_version", GATE_VERSION)  # one that is missing is reported with all that is missing
    if isinstance(version, bool) or version != GATE_VERSION:
        raise ValueError(
            f"the gate of this engine has version {GATE_VERSION}, the request was made for {version!r}. Install the "
            "same duet_trl for trainer and engine."
        )


def _checked(name: str, value: Any, is_right: bool, wanted: str) -> Any:
    if not is_right:
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
    return value


def _count(name: str, value: Any, least: int) -> int:
    is_right = isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST
    return _checked(name, value, is_right, f"an integer in [{least}, {_LARGEST}]")


def _number(name: str, value: Any) -> float:
    is_right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(_checked(name, value, is_right, "a finite number >= 0"))


def _tokens(name: str, value: Any) -> frozenset[int]:
    _checked(name, value, isinstance(value, list | tuple) and len(value) > 0, "a non-empty list of token ids")
    if len(value) > MAX_EOS_IDS:
        raise ValueError(f"{name} may hold {MAX_EOS_IDS} token ids at most, got {len(value)}.")
    return frozenset(_count(f"each id in {name}", token, 0) for token in value)
