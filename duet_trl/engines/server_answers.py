# SPDX-License-Identifier: Apache-2.0
"""Answers of a server: rollouts, or the error that each other answer is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .engine import ServerError, ServerLost
from .guard import TOKEN_VARIABLE, WEIGHTS_VARIABLE

_FINISHED = ("stop", "length", "repetition")
"""Values of vLLM's `FinishReason` for a whole rollout. "abort" leaves a part of one, "error" comes as status 500."""

_REMEDY = "Serve with a version of vLLM that setup.cfg names, without a proxy that changes answers."


class NoSuchPath(ServerError):
    """The server answered with status 404."""


@dataclass(frozen=True)
class Choice:
    """One rollout as the server returned it: sampled ids, stop token included, and log-probs as sampled, in nats.

    `finish_reason` is one of `_FINISHED`; `stop_reason` the stop token that ended it, None for EOS and the limit.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    stop_reason: int | str | None


def choices(answer: Any, count: int) -> list[Choice]:
    """The choices of an answer in the order of its prompts."""
    found_choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(found_choices, list):
        raise ServerError(f"the prompts were not completed by a vLLM server: it answered {str(answer)[:200]!r}.")
    found = {choice.get("index"): choice for choice in found_choices}
    if len(found_choices) != count or found.keys() != set(range(count)):
        raise ServerError(
            f"the server was asked to complete {count} prompts and answered with {len(found_choices)} choices, "
            f"numbered {sorted(found, key=str)[:20]}. {_REMEDY}"
        )
    return [_choice(found[index]) for index in range(count)]


def check_finish(choice: Mapping[str, Any]) -> None:
    """Raise ServerLost or ServerError unless a whole rollout ends so."""
    reason = choice["finish_reason"]
    if reason == "abort":
        raise ServerLost("the server ended a request with 'abort', as it does when it shuts down.")
    if reason not in _FINISHED:
        raise ServerError(
            f"the server ended a request with {reason!r} (stop_reason {choice.get('stop_reason')!r}). Remove from "
            f"generation_kwargs what ends rollouts in this way. {_REMEDY}"
        )


def _choice(choice: Mapping[str, Any]) -> Choice:
    check_finish(choice)
    reason = choice["finish_reason"]
    ids, logprobs = choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("token_logprobs") or []
    if not ids or len(ids) != len(logprobs):
        raise ServerError(
            f"the server returned a rollout of {len(ids)} token ids with {len(logprobs)} log-probs. {_REMEDY}"
        )
    check_logprobs(logprobs)
    return Choice(ids, logprobs, reason, choice["stop_reason"])


def check_logprobs(values: Sequence[float]) -> None:
    """Raise ServerError where one is NaN or infinite: nothing could be corrected by it."""
    odd = [value for value in values if not math.isfinite(value)]
    if odd:
        raise ServerError(
            f"the server returned the log-probability {odd[0]} for a token that it sampled. Look for overflow there: "
            "serve in --dtype bfloat16 or float32, and restart a server whose weights are broken."
        )


def refusal(method: str, url: str, status: int, text: str, failure: type[ServerError] = ServerLost) -> ServerError:
    """The exception for an answer with a status other than 200; `failure`: for 5xx."""
    said = f"{method} {url} was answered with status {status}: {text[:2000]}"
    if status in (401, 403):
        return ServerError(f"{said} Set {TOKEN_VARIABLE} (and {WEIGHTS_VARIABLE}) to the same value as on the server.")
    if status == 404 and "/v1/" not in url and not url.endswith("/health"):
        return NoSuchPath(f"{said} Weight sync needs the server's environment to have VLLM_SERVER_DEV_MODE=1.")
    return failure(said) if status >= 500 else ServerError(said)
