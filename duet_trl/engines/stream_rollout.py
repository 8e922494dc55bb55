# SPDX-License-Identifier: Apache-2.0
"""One rollout as a server in OpenAI's style streams it, and the gate that reads it.

An answered rollout is to stop early where the entropy of its next token is below a threshold. A server tells the
likeliest tokens only, so an upper bound is compared (`entropy_bound`): a rollout never stops where the gate inside an
engine would not, and may stop later, at the end of its grace window at the latest. `replay` takes both.
"""

import heapq
import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ..gate.parameters import GateRequest
from ..gate.streaming import StreamingGate
from .engine import ServerError, ServerLost
from .server_answers import Choice, check_finish, check_logprobs

GATE = "gate"
"""Finish reason of a rollout that the gate has stopped."""

REMEDY = (
    "Ask a server whose completions return token ids and log-probs, as `vllm serve` does (return_token_ids, "
    "logprobs), without a proxy that changes answers."
)

_TOP = 5
"""Log-probs asked for with each token where the entropy counts: the most that OpenAI's API gives."""

_LATE_SHARE = 0.02
_LONGEST_INTERVAL = 16
"""Bounds on the tokens of a chunk: half of them are at most this share of those before the earliest stop. A stop lies
anywhere in its chunk, and each chunk costs the server as much as a token."""

_LONGEST_LINE = 2**24


class Stream:
    """One rollout as it arrives.

    The gate reads only where a decision may fall, which follows from the tokens so far: the decisions are those of a
    gate that reads every token at once.
    """

    def __init__(
        self,
        prompt: list[int],  # with the prefix
        limit: int,  # tokens it may have
        eos_ids: frozenset[int],  # that end it; empty where it continues after them
        gate: StreamingGate,
        slot: int,  # of the gate
        request: GateRequest | None,  # None: no gate
        vocab_size: int,  # 0: the log-probs are not the policy's, and the entropy stops nothing
    ) -> None:
        self.prompt, self.limit, self.eos_ids = prompt, limit, eos_ids
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish, self.late = "", 0  # tokens that came after the stop
        self._stop_reason: int | str | None = None
        self._gate, self._slots, self._request, self._vocab_size = gate, np.array([slot]), request, vocab_size
        self._read = self._read_at = 0  # tokens that the gate has read, and at which it reads next
        self._armed = False  # whether a nearly certain next token stops it
        interval, top = _LONGEST_INTERVAL, 0
        if request is not None:
            begun, spec = request.prefix_length, request.spec
            prefix = prompt[len(prompt) - begun :]
            gate.admit(slot, spec, request.keep, prefix=prefix, in_thought=request.in_thought)
            earliest = min(spec.trim_at, spec.abort_at) - begun
            interval = max(1, min(1 + int(2 * _LATE_SHARE * earliest), _LONGEST_INTERVAL))
            top = _TOP if spec.trims_early and vocab_size else 0
            self._ask()
        self.body = {"prompt": prompt, "max_tokens": limit, "logprobs": top, "stream_interval": interval}

    @property
    def choice(self) -> Choice:
        """The rollout, once it has ended."""
        return Choice(self.ids, self.logprobs, self.finish, self._stop_reason)

    def take(self, choice: Mapping[str, Any]) -> bool:
        """Consume a chunk; True: the rollout has ended, or is stopped."""
        if choice.get("prompt_token_ids") not in (None, self.prompt):
            raise ServerError(
                f"the server completed {choice['prompt_token_ids'][:20]}... instead of the prompt "
                f"{self.prompt[:20]}... Switch off what adds tokens to prompts or cuts them."
            )
        tokens, logprobs, tops = tokens_of(choice)
        reason, taken = choice.get("finish_reason"), 0
        while taken < len(tokens) and not self.finish:
            if self._armed and self._certain(tops[taken : taken + 1]):
                self.finish = GATE
                break
            more = 1 if self._armed else len(tokens) if self._request is None else self._read_at - len(self.ids)
            part = slice(taken, taken + more)
            self.ids += tokens[part]
            self.logprobs += logprobs[part]
            taken += len(tokens[part])
            if taken < len(tokens) or not (reason or len(self.ids) >= self.limit or self.ids[-1] in self.eos_ids):
                self._ask()
        self.late += len(tokens) - taken
        if self.finish != GATE and reason is not None:
            check_finish(choice)
            self.finish, self._stop_reason = reason, choice.get("stop_reason")
            self._check_end()
        elif not self.finish and self.ids and self.ids[-1] in self.eos_ids:  # and the reason comes by itself
            self.finish = "stop"
        elif not self.finish and len(self.ids) >= self.limit:
            self.finish = "length"
        return bool(self.finish)

    def _ask(self) -> None:
        """Let the gate read, where a decision may fall."""
        if self._request is not None and len(self.ids) >= self._read_at:
            self._gate.advance(self._slots, np.array(self.ids[self._read :], dtype=np.int64)[:, None])
            self._read = len(self.ids)
            self._read_at = self._read + int(self._gate.quiet_steps(self._slots)[0])
            self._armed = self._vocab_size > 0 and bool(self._gate.armed(self._slots)[0])
            self.finish = GATE if self._gate.stops(self._slots)[0] else ""

    def _certain(self, tops: list[Mapping[str, float]]) -> bool:
        """Whether the next token, drawn from `tops`, one mapping, is nearly certain and no end."""
        if not tops:
            raise ServerError(
                "the server returns no likeliest tokens (top_logprobs), from which entropy_threshold is decided. Set "
                'method_kwargs={"entropy_threshold": 0}, or ask a server that does.'
            )
        # The token that was drawn comes with them, and a stop must not depend on it.
        bound = entropy_bound(heapq.nlargest(_TOP, tops[0].values()), self._vocab_size)
        ends = _token_id(max(tops[0], key=tops[0].get)) in self._request.eos_ids
        return bound < self._request.spec.entropy_threshold and not ends

    def _check_end(self) -> None:
        """An end token that the server keeps for itself would never be learnt."""
        named = self._stop_reason is None or self._stop_reason in self.eos_ids
        if self.finish == "stop" and named and self.eos_ids and self.eos_ids.isdisjoint(self.ids[-1:]):
            raise ServerError(
                f"the server ended a rollout by 'stop' after {self.ids[-3:]}, which is not one of the end tokens "
                f"{sorted(self.eos_ids)}: it leaves them out of its token ids, and the policy would never learn to "
                f"end. {REMEDY}"
            )


class Events:
    """Server-sent events of a completion, from pieces of bytes that may end anywhere."""

    def __init__(self) -> None:
        self.rest, self.any = b"", False
        self.begin = b""  # of what came

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The choices that are whole now. ServerLost or ServerError for an event that is an error."""
        self.begin = self.begin or piece[:200]
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if len(self.rest) > _LONGEST_LINE:
            raise ServerError(f"the server sent a line of more than {_LONGEST_LINE} bytes. {REMEDY}")
        found = []
        for text in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            self.any = True
            try:
                event = {} if text == b"[DONE]" else json.loads(text)
                found += event.get("choices") or ()
            except (ValueError, AttributeError) as error:
                raise ServerError(f"the server sent an event that is not a JSON object: {text[:200]!r}.") from error
            if event.get("error"):
                code = event["error"].get("code") if isinstance(event["error"], dict) else None
                kind = ServerError if isinstance(code, int) and 400 <= code < 500 else ServerLost
                raise kind(f"the server ended a stream with an error: {event['error']!s:.2000}")
        return found


def entropy_bound(logprobs: Collection[float], vocab_size: int) -> float:
    """The largest entropy, nats, of a distribution over V tokens, k of them with these log-probs.

    What is left of the probability, r, spread evenly over the other tokens: H <= -sum p log p + r log((V - k) / r).
    """
    rest = max(1.0 - math.fsum(map(math.exp, logprobs)), 0.0)
    known = -math.fsum(math.exp(value) * value for value in logprobs)
    return known + (rest * math.log(max(vocab_size - len(logprobs), 1) / rest) if rest > 0.0 else 0.0)


def tokens_of(choice: Mapping[str, Any]) -> tuple[list[int], list[float], list[Mapping[str, float]]]:
    """Ids, log-probs and likeliest tokens of a chunk; ServerError if one of the first two is not there."""
    scores = choice.get("logprobs") or {}
    logprobs, ids = scores.get("token_logprobs") or [], choice.get("token_ids")
    if ids is None:
        ids = [_token_id(text) for text in scores.get("tokens") or ()]
    if len(ids) != len(logprobs) or None in logprobs or (choice.get("text") and not ids):
        raise ServerError(f"the server streamed {len(ids)} token ids with {len(logprobs)} log-probs. {REMEDY}")
    check_logprobs(logprobs)
    return ids, logprobs, scores.get("top_logprobs") or []


def _token_id(text: str) -> int:
    kind, _, number = text.partition(":")
    if kind != "token_id" or not number.isdecimal():
        raise ServerError(f"the server names a token by its text, {text!r:.80}, and not by its id. {REMEDY}")
    return int(number)
