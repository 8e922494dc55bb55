# SPDX-License-Identifier: Apache-2.0
"""The gate on the stream of a server that knows nothing of it: `vllm serve` as it comes, or another in OpenAI's style.

Each rollout is a stream of token ids with their log-probs. The gate reads them as they arrive, and where it stops the
rollout the client hangs up. Tokens behind the stop are dropped; they were generated for nothing, and are counted as
waste. How many a chunk holds is asked for: few enough that those behind a stop cost little.

An answered rollout is to stop early where the entropy of its next token is below a threshold. A server tells the
likeliest tokens only, so an upper bound is compared (`entropy_bound`): a rollout never stops where the gate inside an
engine would not, and may stop later, at the end of its grace window at the latest. `replay` takes both.
"""

import asyncio
import heapq
import json
import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from ..gate.automaton import TokenAutomaton
from ..gate.parameters import GateRequest
from ..gate.streaming import StreamingGate
from .engine import ServerError, ServerLost
from .server import Choice, GateServer, NoSuchPath, check_finish, refusal, room_for_requests

GATE = "gate"
"""Finish reason of a rollout that the gate has stopped."""

_TOP = 5
"""Log-probs asked for with each token where the entropy counts: the most that OpenAI's API gives."""

_LATE_SHARE = 0.02
_LONGEST_INTERVAL = 16
"""A chunk holds at most this share of the tokens before the earliest stop, on average half of it behind the stop."""

_LONGEST_LINE = 2**24
_REFUSALS = 8
"""How often a request may be refused by status 429 or 503 before its first token: a minute in all."""

_MOST_WASTE = 0.1
_FEW_TOKENS = 1000

_REMEDY = (
    "Ask a server whose completions can return token ids and log-probs, as `vllm serve` does (return_token_ids, "
    "logprobs), without a proxy that changes answers."
)

logger = logging.getLogger(__name__)


class StreamServer(GateServer):
    """Client of a server that streams completions; `automaton` is the marker of the run's gates, None without any."""

    start = "vllm serve <model> --host 127.0.0.1 (docs/engines.md has the whole line)"
    buffer_bytes = 2**13
    automaton: TokenAutomaton | None = None
    waste = 0.0
    """Of the tokens generated for the last batch, the share that no rollout has: those behind a stop."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        super().__init__(base_url, token)
        self._generated: float | None = None  # by the server in its life, as it said behind the last batch
        self._said: set[str] = set()

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Mapping[str, Any],
        gates: Sequence[GateRequest | None],
        eos_ids: Sequence[int],
        limits: Sequence[int | None] | None = None,
    ) -> list[Choice]:
        """One completion of each prompt, a stream each; see `GateServer.complete`.

        A rollout that the gate stops has the finish reason `GATE` and no token for it.
        """
        self._model = model = self._model or self._ask("GET", "/v1/models", seconds=30.0)["data"][0]["id"]
        plain = is_plain(sampling)
        if not plain and any(gate is not None and gate.spec.trims_early for gate in gates):
            self._say_once(
                "The server's log-probs are those after temperature, top-p and the like, and entropy_threshold is "
                "about those of the policy: answered rollouts run to the end of their grace window. Sample at "
                "temperature=1 and top_p=1 to stop them earlier, or set entropy_threshold=0."
            )
        watch = StreamingGate(len(prompts), [] if self.automaton is None else [self.automaton])
        vocab_size = 0 if self.automaton is None else self.automaton.num_tokens
        streams, bodies = [], []
        for row, (prompt, gate, limit) in enumerate(zip(prompts, gates, limits or [None] * len(gates), strict=True)):
            limit = sampling["max_tokens"] if limit is None else limit
            ends = frozenset() if sampling.get("ignore_eos") else frozenset(eos_ids)
            stream = Stream(row, list(prompt), limit, ends, watch, gate, plain, vocab_size)
            streams.append(stream)
            bodies.append(_body(model, stream, sampling, eos_ids))

        async def complete(session: aiohttp.ClientSession) -> None:
            if self._generated is None:
                self._generated = await self._count(session)
            room = room_for_requests()

            async def send(stream: Stream, body: dict[str, Any]) -> None:
                async with room:
                    await self._follow(session, stream, body)

            running = [(stream, body) for stream, body in zip(streams, bodies, strict=True) if stream.finish != GATE]
            before, self._generated = self._generated, None  # unless all of it is counted
            await self._guarded(session, [send(*one) for one in running])
            self._generated = await self._count(session)
            told = None if None in (before, self._generated) else self._generated - before
            self._tally(streams, told)

        self._run(complete)
        return [stream.choice for stream in streams]

    def try_out(self, sampling: Mapping[str, Any], eos_ids: Sequence[int], text: str, ids: list[int]) -> None:
        """Make sure that the server streams what training needs.

        Args:
            sampling (Mapping[str, Any]): Body of the run's requests.
            eos_ids (Sequence[int]): All ids that end a rollout by itself.
            text, ids (str, list[int]): A text, and what the policy's tokenizer makes of it.

        Raises:
            ServerError: If it returns no token ids or no log-probs, has another tokenizer, or returns log-probs that
                are not those of the sampling distribution.
        """
        prompt = [eos_ids[0]]
        self.complete([prompt], {**sampling, "max_tokens": 2}, [None], eos_ids)
        if not is_plain(sampling):
            body = {"model": self._model, "prompt": prompt, "logprobs": 1}
            plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
            answers = (
                self._ask("POST", "/v1/completions", {**sampling, **changed, **body, "max_tokens": 1})
                for changed in ({}, plain)
            )
            likeliest = [max(a["choices"][0]["logprobs"]["top_logprobs"][0].values()) for a in answers]
            if likeliest[0] == likeliest[1]:
                raise ServerError(
                    f"the server at {self.base_url} returns log-probabilities from before temperature, top-p and the "
                    "like. Start it with --logprobs-mode processed_logprobs, or sample at temperature=1 and top_p=1."
                )
        try:
            body = {"model": self._model, "prompt": text, "add_special_tokens": False}
            found = self._ask("POST", "/tokenize", body)["tokens"]
        except NoSuchPath:  # not every server has it; other tokens would have other log-probs (duet/engine_gap)
            return
        if found != ids:
            raise ServerError(
                f"the server at {self.base_url} has another tokenizer: it reads {text!r} as {found} instead of {ids}. "
                "Serve the model that is trained, with its tokenizer."
            )

    async def _follow(self, session: aiohttp.ClientSession, stream: "Stream", body: dict[str, Any]) -> None:
        """Read one rollout to its end, or to its stop, and hang up."""
        url, events = f"{self.base_url}/v1/completions", Events()
        response = await self._open(session, url, body)
        try:
            async for piece in response.content.iter_any():
                choices = iter(events.feed(piece))
                for choice in choices:
                    if stream.take(choice):
                        if stream.finish == GATE:
                            waiting = events.feed(response.content.read_nowait())
                            stream.late += sum(len(_tokens(late)[0]) for late in (*choices, *waiting))
                        return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            count = len(stream.ids)
            raise ServerLost(
                f"a stream of {url} broke after {count} tokens: {type(error).__name__} {error}"
            ) from error
        finally:
            response.close()
        if not events.any:
            raise ServerError(
                f"{url} was asked for a stream and answered with {bytes(events.rest[:200])!r}. {_REMEDY}"
            )
        raise ServerLost(
            f"{url} ended a stream after {len(stream.ids)} tokens without a reason. A server that is shut down does "
            "so, or a proxy with a time limit, which must be longer than a rollout takes."
        )

    async def _open(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """The stream of a request. One that is refused for lack of room has generated nothing, and is sent again."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the heartbeat notices a server that is away
        for attempt in range(_REFUSALS):
            try:
                response = await session.post(url, json=body, timeout=timeout)
                if response.status == 200:
                    return response
                text = await response.text()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise ServerLost(f"POST {url} failed: {type(error).__name__} {error}".rstrip()) from error
            if response.status not in (429, 503):
                raise refusal("POST", url, response.status, text)
            wished = response.headers.get("Retry-After", "")
            await asyncio.sleep(min(float(wished), 60.0) if wished.isdecimal() else 0.25 * 2**attempt)
        raise ServerLost(
            f"POST {url} was refused {_REFUSALS} times with status {response.status}: {text[:2000]} Give the "
            "server, or the proxy in front of it, room for more requests."
        )

    async def _count(self, session: aiohttp.ClientSession) -> float | None:
        """Tokens that the server has generated since it started; None: it does not say."""
        try:
            async with session.get(f"{self.base_url}/metrics", timeout=aiohttp.ClientTimeout(total=30.0)) as response:
                text = await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, OSError, TimeoutError):
            text = ""
        found = re.findall(r"^\w+:generation_tokens_total(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found)) if found else None

    def _tally(self, streams: Sequence["Stream"], told: float | None) -> None:
        """Share of a batch's tokens that no rollout has; `told`: generated meanwhile, as the server says."""
        counted = sum(len(stream.ids) for stream in streams)
        generated = max(counted + sum(stream.late for stream in streams), told or 0.0)
        self.waste = 1.0 - counted / generated if generated else 0.0
        if self.waste > _MOST_WASTE and generated >= _FEW_TOKENS:
            stopped = [stream for stream in streams if stream.finish == GATE]
            if 2 * sum(stream.late > stream.interval for stream in stopped) > len(stopped):
                reason = "They had come when it was decided, so something buffers the streams. Switch the buffering "
                reason += "of the proxy off (nginx: proxy_buffering off), or ask the server itself."
            else:
                reason = "The server goes on after the client has hung up, as behind a proxy that keeps the "
                reason += "connection, or it has other users. Ask the server itself, and alone."
            self._say_once(
                f"{self.waste:.0%} of the tokens of a batch were generated behind a stop of the gate, and are lost. "
                f"{reason}"
            )

    def _say_once(self, sentence: str) -> None:
        if sentence[-60:] not in self._said:
            self._said.add(sentence[-60:])
            logger.warning("%s: %s", self.base_url, sentence)


@dataclass
class Stream:
    """One rollout as it arrives.

    Its gate is read where a decision may fall, which its tokens so far foretell: the decisions are those of a gate
    that reads every token at once.
    """

    slot: int  # of the gate
    prompt: list[int]
    limit: int  # tokens it may have
    eos_ids: frozenset[int]  # that end it; none where it runs on behind them
    watch: StreamingGate
    request: GateRequest | None
    early: bool  # whether the log-probs are those of the policy
    vocab_size: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    stop_reason: int | str | None = None
    late: int = 0  # tokens that came behind the stop
    armed: bool = False  # whether a nearly certain next token stops it
    read: int = 0  # tokens that the gate has read
    read_at: int = 0  # tokens at which it is read next

    def __post_init__(self) -> None:
        if self.request is None:
            return
        begun = self.request.prefix_length
        prefix = self.prompt[len(self.prompt) - begun :]
        self._slots = np.array([self.slot])
        self.watch.admit(
            self.slot, self.request.spec, self.request.keep, prefix=prefix, in_thought=self.request.in_thought
        )
        self._ask()

    @property
    def choice(self) -> Choice:
        """The rollout, once it has ended."""
        return Choice(self.ids, self.logprobs, self.finish, self.stop_reason)

    @property
    def interval(self) -> int:
        """Tokens of a chunk."""
        if self.request is None:
            return _LONGEST_INTERVAL
        earliest = min(self.request.spec.trim_at, self.request.spec.abort_at) - self.request.prefix_length
        return max(1, min(int(_LATE_SHARE * earliest), _LONGEST_INTERVAL, self.limit))

    @property
    def top(self) -> int:
        """Log-probs to ask for with each token, beside its own."""
        return _TOP if self.request is not None and self.early and self.request.spec.trims_early else 0

    def take(self, choice: Mapping[str, Any]) -> bool:
        """Consume a chunk; True: the rollout has ended, or is stopped."""
        if choice.get("prompt_token_ids") not in (None, self.prompt):
            raise ServerError(
                f"the server completed {choice['prompt_token_ids'][:20]}... instead of the prompt "
                f"{self.prompt[:20]}... Switch off what adds tokens to prompts or cuts them."
            )
        tokens, logprobs, tops = _tokens(choice)
        reason, taken = choice.get("finish_reason"), 0
        while taken < len(tokens) and self.finish != GATE:
            if self.armed and self._certain(tops[taken : taken + 1]):
                self.finish = GATE
                break
            more = 1 if self.armed else len(tokens) if self.request is None else self.read_at - len(self.ids)
            part = slice(taken, taken + more)
            self.ids += tokens[part]
            self.logprobs += logprobs[part]
            taken += len(tokens[part])
            ended = reason is not None or len(self.ids) >= self.limit or self.ids[-1] in self.eos_ids
            if not (taken == len(tokens) and ended):
                self._ask()
        if self.finish == GATE:
            self.late += len(tokens) - taken
            return True
        if reason is not None:
            check_finish(choice)
            self.finish, self.stop_reason = reason, choice.get("stop_reason")
            self._check_end()
        elif self.ids and self.ids[-1] in self.eos_ids:
            self.finish = "stop"
        elif len(self.ids) >= self.limit:
            self.finish = "length"
        return bool(self.finish)

    def _ask(self) -> None:
        """Let the gate read, where a decision may fall."""
        if self.request is None or len(self.ids) < self.read_at:
            return
        self.watch.advance(self._slots, np.array(self.ids[self.read :], dtype=np.int64)[:, None])
        self.read = len(self.ids)
        self.read_at = self.read + int(self.watch.quiet_steps(self._slots)[0])
        self.armed = self.early and bool(self.watch.armed(self._slots)[0])
        if self.watch.stops(self._slots)[0]:
            self.finish = GATE

    def _certain(self, tops: list[Mapping[str, float]]) -> bool:
        """Whether the next token, drawn from `tops`, one mapping, is nearly certain and no end."""
        if not tops:
            raise ServerError(
                "the server returns no likeliest tokens (top_logprobs), from which entropy_threshold is decided. Set "
                'method_kwargs={"entropy_threshold": 0}, or ask a server that does.'
            )
        likeliest = _token_id(max(tops[0], key=tops[0].get))
        # The token that was drawn comes with them, and a stop must not depend on it.
        bound = entropy_bound(heapq.nlargest(_TOP, tops[0].values()), self.vocab_size)
        return bound < self.request.spec.entropy_threshold and likeliest not in self.request.eos_ids

    def _check_end(self) -> None:
        """An end token that the server keeps for itself would never be learnt."""
        named = self.stop_reason is None or self.stop_reason in self.eos_ids
        if self.finish == "stop" and named and self.eos_ids and not (self.ids and self.ids[-1] in self.eos_ids):
            raise ServerError(
                f"the server ended a rollout by 'stop' behind {self.ids[-3:]}, which is none of the end tokens "
                f"{sorted(self.eos_ids)}: it leaves them out of its token ids, and the policy would never learn "
                f"to end. {_REMEDY}"
            )


class Events:
    """Server-sent events of a completion, from pieces of bytes that may end anywhere."""

    def __init__(self) -> None:
        self.rest, self.any = b"", False

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The choices that are whole now. ServerLost or ServerError for an event that is an error."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if len(self.rest) > _LONGEST_LINE:
            raise ServerError(f"the server sent a line of more than {_LONGEST_LINE} bytes. {_REMEDY}")
        found = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            self.any = True
            text = line[5:].strip()
            if text == b"[DONE]":
                continue
            try:
                event = json.loads(text)
                choices = event.get("choices")
            except (ValueError, AttributeError) as error:
                raise ServerError(f"the server sent an event that is no JSON object: {text[:200]!r}.") from error
            if "error" in event:
                raise _failure(event["error"])
            found += choices or ()
        return found


def _failure(error: Any) -> ServerError:
    code = error.get("code") if isinstance(error, dict) else None
    asked_wrongly = isinstance(code, int) and 400 <= code < 500
    return (ServerError if asked_wrongly else ServerLost)(f"the server ended a stream with an error: {error!s:.2000}")


def entropy_bound(logprobs: Collection[float], vocab_size: int) -> float:
    """The largest entropy, nats, of a distribution over V tokens of which k have these log-probs.

    What is left of the probability, r, spread evenly over the other tokens: H <= -sum p log p + r log((V - k) / r).
    """
    known = [math.exp(value) for value in logprobs]
    rest, others = max(1.0 - math.fsum(known), 0.0), max(vocab_size - len(known), 1)
    entropy = -math.fsum(p * value for p, value in zip(known, logprobs, strict=True))
    return entropy + (rest * math.log(others / rest) if rest > 0.0 else 0.0)


def is_plain(sampling: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn from the policy's own distribution, so that all log-probs are the policy's."""
    neutral = {"temperature": 1, "top_p": 1, "repetition_penalty": 1, "min_p": 0, "presence_penalty": 0}
    neutral |= {"frequency_penalty": 0, "logit_bias": None, "structured_outputs": None}
    others = all(sampling.get(name, value) == value for name, value in neutral.items())
    return others and sampling.get("top_k", 0) in (0, -1, None)


def _body(model: str, stream: Stream, sampling: Mapping[str, Any], eos_ids: Sequence[int]) -> dict[str, Any]:
    asked = {"model": model, "prompt": stream.prompt, "logprobs": stream.top}
    asked |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "stream_interval": stream.interval}
    stops = sorted({*(sampling.get("stop_token_ids") or ()), *eos_ids})
    return {**asked, **sampling, "max_tokens": stream.limit, "stop_token_ids": stops, "stream": True}


def _tokens(choice: Mapping[str, Any]) -> tuple[list[int], list[float], list[Mapping[str, float]]]:
    """Ids, log-probs and likeliest tokens of a chunk; ServerError if one of the first two is not there."""
    scores = choice.get("logprobs") or {}
    logprobs, ids = scores.get("token_logprobs") or [], choice.get("token_ids")
    if ids is None:
        ids = [_token_id(text) for text in scores.get("tokens") or ()]
    if len(ids) != len(logprobs) or None in logprobs or (choice.get("text") and not ids):
        raise ServerError(
            f"the server streamed {len(ids)} token ids with {len(logprobs)} log-probs for the text "
            f"{choice.get('text')!r:.80}. {_REMEDY}"
        )
    return ids, logprobs, scores.get("top_logprobs") or []


def _token_id(text: str) -> int:
    kind, _, number = text.partition(":")
    if kind != "token_id" or not number.isdecimal():
        raise ServerError(f"the server names a token by its text, {text!r:.80}, and not by its id. {_REMEDY}")
    return int(number)
