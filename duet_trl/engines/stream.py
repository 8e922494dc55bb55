# SPDX-License-Identifier: Apache-2.0
"""The gate on the streams of a server that does not know it: plain `vllm serve`, or another with OpenAI's API.

Each rollout is a stream of token ids with their log-probs (`stream_rollout.py`). The gate reads them as they arrive,
and where it stops the rollout the client disconnects. Tokens after the stop are dropped, and counted as waste.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from ..gate.automaton import TokenAutomaton
from ..gate.parameters import GateRequest
from ..gate.streaming import StreamingGate
from .engine import ServerError, ServerLost
from .server import GateServer, room_for_requests
from .server_answers import Choice, NoSuchPath, refusal
from .stream_rollout import REMEDY, Events, Stream, tokens_of

_REFUSALS = 8
"""How often a request may be refused by status 429 or 503 before its first token. The waits between them double, and
make half a minute in all, unless the server names others (Retry-After)."""
_LONGEST_WAIT = 60.0  # seconds, whatever it names

_MOST_WASTE = 0.1
_FEW_TOKENS = 1000
"""Fewer are not evidence about a server."""

logger = logging.getLogger(__name__)


class StreamServer(GateServer):
    """Client of a server that streams completions; `automaton` is the marker of the run's gates, None without any."""

    start = "vllm serve <model> --host 127.0.0.1 --port {port} (docs/servers.md has the whole line)"
    buffer_bytes = 2**13  # a server that is faster than the gate has to wait
    automaton: TokenAutomaton | None = None
    waste = 0.0
    """Share of the tokens generated for the last batch that no rollout has: those after a stop."""
    _generated: float | None = None  # by the server since it started, as reported after the last batch
    _said: frozenset[str] = frozenset()  # warnings

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Mapping[str, Any],
        gates: Sequence[GateRequest | None],
        eos_ids: Sequence[int],
        limits: Sequence[int | None] | None = None,
    ) -> list[Choice]:
        """One completion of each prompt, a stream each; see `GateServer.complete`.

        A rollout that the gate stops has the finish reason `GATE`, and no token for it.
        """
        model = self._served()
        plain = is_plain(sampling)
        if not plain and any(gate is not None and gate.spec.trims_early for gate in gates):
            self._say_once(
                "log-probs are those after temperature, top-p and the like, and entropy_threshold is about those of "
                "the policy: answered rollouts run to the end of their grace window. Sample at temperature=1 and "
                "top_p=1 to stop them earlier, or set entropy_threshold=0."
            )
        gate = StreamingGate(len(prompts), [] if self.automaton is None else [self.automaton])
        ends = frozenset() if sampling.get("ignore_eos") else frozenset(eos_ids)
        asked = {"model": model, "return_token_ids": True, "return_tokens_as_token_ids": True, **sampling}
        asked |= {"stream": True, "stop_token_ids": sorted({*(sampling.get("stop_token_ids") or ()), *eos_ids})}
        streams = []
        for row, (prompt, request, limit) in enumerate(
            zip(prompts, gates, limits or [None] * len(gates), strict=True)
        ):
            limit = sampling["max_tokens"] if limit is None else limit
            vocab_size = self.automaton.num_tokens if plain and self.automaton is not None else 0
            streams.append(Stream(list(prompt), limit, ends, gate, row, request, vocab_size))

        async def complete(session: aiohttp.ClientSession) -> None:
            before = await self._count(session) if self._generated is None else self._generated
            self._generated, room = None, room_for_requests()  # unless all of the batch is counted

            async def send(stream: Stream) -> None:
                async with room:
                    await self._follow(session, stream, asked | stream.body)

            await self._guarded(session, [send(stream) for stream in streams if not stream.finish])
            self._generated = await self._count(session)
            self._tally(streams, 0.0 if None in (before, self._generated) else self._generated - before)

        self._run(complete)
        return [stream.choice for stream in streams]

    def try_out(self, sampling: Mapping[str, Any], eos_ids: Sequence[int], text: str, ids: list[int]) -> None:
        """Make sure that the server streams what training with this `sampling` needs, before it begins.

        ServerError: it returns no token ids or no log-probs, or log-probs that are not those of the sampling
        distribution, or its tokenizer does not read `text` as `ids`.
        """
        prompt = [eos_ids[0]]
        self.complete([prompt], {**sampling, "max_tokens": 2}, [None], eos_ids)
        if not is_plain(sampling):
            body = {"model": self._model, "prompt": prompt, "logprobs": 1, "max_tokens": 1, **_NEUTRAL}
            answers = (self._ask("POST", "/v1/completions", body | {"temperature": way}) for way in (1.0, 0.5))
            first, second = (max(a["choices"][0]["logprobs"]["top_logprobs"][0].values()) for a in answers)
            if first == second:
                raise ServerError(
                    f"the server at {self.base_url} returns log-probabilities from before temperature, top-p and the "
                    "like. Start it with --logprobs-mode processed_logprobs, or sample at temperature=1 and top_p=1."
                )
        try:
            body = {"model": self._model, "prompt": text, "add_special_tokens": False}
            answer = self._ask("POST", "/tokenize", body)
            found = answer.get("tokens") if isinstance(answer, dict) else answer
        except NoSuchPath:  # not every server has it; other tokens would have other log-probs (duet/engine_gap)
            return
        if found != ids:
            raise ServerError(
                f"the server at {self.base_url} has another tokenizer: it reads {text!r} as {found} instead of {ids}. "
                "Serve the model that is trained, with its tokenizer."
            )

    async def _follow(self, session: aiohttp.ClientSession, stream: Stream, body: dict[str, Any]) -> None:
        """Read one rollout to its end, or to its stop, and close the connection."""
        url, events = f"{self.base_url}/v1/completions", Events()
        response = await self._open(session, url, body)
        try:
            async for piece in response.content.iter_any():
                self.heard += 1
                choices = iter(events.feed(piece))
                for choice in choices:
                    if stream.take(choice):
                        late = *choices, *events.feed(response.content.read_nowait())
                        stream.late += sum(len(tokens_of(choice)[0]) for choice in late)
                        return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            broke = f"{url} broke a stream after {len(stream.ids)} tokens: {type(error).__name__} {error}"
            raise ServerLost(broke.rstrip()) from error
        except (AttributeError, IndexError, KeyError, TypeError) as error:  # of JSON in another form
            raise ServerError(f"{url} streamed a chunk of another form ({error!r}). {REMEDY}") from error
        finally:
            response.close()
        if not events.any:
            raise ServerError(f"{url} was asked for a stream and answered with {events.begin!r}. {REMEDY}")
        raise ServerLost(
            f"{url} ended a stream after {len(stream.ids)} tokens without a reason. A server that is shut down does "
            "so, or a proxy with a time limit, which must be longer than a rollout takes."
        )

    async def _open(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """The stream of a request. One that is refused for lack of room has generated nothing, and is sent again."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the heartbeat notices a server that is away
        for refused in range(1, _REFUSALS + 1):
            try:
                response = await session.post(url, json=body, timeout=timeout)
                if response.status == 200:
                    return response
                text = await response.text()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise ServerLost(f"POST {url} failed: {type(error).__name__} {error}".rstrip()) from error
            if response.status not in (429, 503):
                error = refusal("POST", url, response.status, text)
                raise type(error)(f"{error} {REMEDY}" if response.status in (400, 422) else str(error))
            if refused < _REFUSALS:
                wished = response.headers.get("Retry-After", "")
                await asyncio.sleep(min(float(wished), _LONGEST_WAIT) if wished.isdecimal() else 0.125 * 2**refused)
        raise ServerLost(
            f"POST {url} was refused {_REFUSALS} times with status {response.status}: {text[:2000]} Give the server, "
            "or the proxy in front of it, room for more requests."
        )

    async def _count(self, session: aiohttp.ClientSession) -> float | None:
        """Tokens that the server has generated since it started; None: not reported."""
        try:
            async with session.get(f"{self.base_url}/metrics", timeout=aiohttp.ClientTimeout(total=30.0)) as response:
                text = await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        found = re.findall(r"^\w+:generation_tokens_total(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found)) if found else None

    def _tally(self, streams: Sequence[Stream], told: float) -> None:
        """Share of a batch's tokens that no rollout has; `told`: generated meanwhile, as the server reports, or 0."""
        counted = sum(len(stream.ids) for stream in streams)
        generated = max(counted + sum(stream.late for stream in streams), told)
        self.waste = 1.0 - counted / max(generated, 1)
        if self.waste > _MOST_WASTE and generated >= _FEW_TOKENS:
            self._say_once(
                "many tokens are generated after the stop of the gate and dropped (duet/waste_share). A proxy buffers "
                "the streams (nginx: proxy_buffering off) or keeps connections that the client has left, the "
                "server has other users, or its engine is faster than its streams, as that of a tiny model is. "
                "Connect to the server directly, as its only user, or run the gate in it (docs/servers.md)."
            )

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said |= {sentence}
            logger.warning("%s: %s", self.base_url, sentence)


_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def is_plain(sampling: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn from the policy's own distribution, so that all log-probs are the policy's."""
    same = {"presence_penalty": 0, "frequency_penalty": 0, "logit_bias": None, "structured_outputs": None, **_NEUTRAL}
    return all(
        sampling.get(name, value) == value or (name, sampling[name]) == ("top_k", -1) for name, value in same.items()
    )
