# SPDX-License-Identifier: Apache-2.0
"""The gate of one rollout as the one parameter of a request to an inference engine.

A JSON text under the name `duet_gate`, which `SamplingParams.extra_args` of vLLM and `vllm_xargs` of its HTTP server
both carry. A request without it runs ungated.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from .replay import GateSpec
from .streaming import GateRequest as GateRequest
from .thoughts import Delimiters

PARAMETER = "duet_gate"

GATE_VERSION = 5
"""Incremented whenever the meaning of the parameter changes; trainer and engine must agree on it."""


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
            f"sentinel {request.sentinel} must be in stop_token_ids, or the rollout continues. Add it there."
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
