# SPDX-License-Identifier: Apache-2.0
"""A server of its own that speaks OpenAI's completions over plain sockets, with scripted rollouts and scripted faults.

Tokens are those of the toy vocabulary of `tests/gate/oracle.py`, in one larger one. What a rollout would be without a
gate is known beforehand, so that the oracle says where a gate has to stop it.
"""

import asyncio
import contextlib
import json
import math
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duet_trl.gate.automaton import TokenAutomaton, compile_automaton
from tests.gate.oracle import EOS, C, next_entropies, toy_marker

VOCAB = 64
THRESHOLD = 0.5  # nats, between the entropies of `next_entropies`
TOPS = {  # the likeliest five of a distribution by its entropy: certain, open, certain to end
    0.1: {C: 0.98, 8: 0.004, 9: 0.004, 10: 0.004, 11: 0.004},
    0.9: {C: 0.3, 8: 0.2, 9: 0.2, 10: 0.1, 11: 0.1},
    np.inf: {EOS: 0.98, 8: 0.004, 9: 0.004, 10: 0.004, 11: 0.004},
}


def toy_vocabulary() -> TokenAutomaton:
    return compile_automaton(toy_marker(), [b"a", b"b", b"c", None, *[None] * (VOCAB - 4)])


class Script:
    """What a prompt, [.., row], would be continued to: ids with their log-probs, and the entropy before each."""

    def __init__(self, row: int, longest: int) -> None:
        random = np.random.default_rng(row)
        ids = random.choice(4, p=[0.25, 0.2, 0.52, 0.03], size=longest).tolist()
        self.ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
        self.entropy = next_entropies(len(self.ids), random)
        self.logprobs = [-1.0 - row / 4096 - at / 2**20 for at in range(len(self.ids))]  # no two rollouts share one


@dataclass
class StreamPeer:
    """A server on a port of its own; the prompt [row, EOS, *prefix] is continued as `Script(row)` says.

    Its faults: it `refuses` some requests by 503, and asks for `last_wait` seconds behind the last of them; `breaks`
    streams off once, and `pauses` them until the client hangs up, by their row behind so many new tokens; `buffers`
    them whole; `goes_on` generating behind a hang-up.
    """

    longest: int = 60
    refuses: int = 0
    status: int = 200  # of every completion
    last_wait: int = 0
    breaks: dict[int, int] = field(default_factory=dict)
    pauses: dict[int, int] = field(default_factory=dict)
    buffers: bool = False
    goes_on: bool = False
    busy: bool = False  # too much so to answer /health
    changes: dict[str, Any] = field(default_factory=dict)  # of each chunk
    raw: bytes = b""  # a body in the place of every stream
    others: dict[str, Any] = field(default_factory=lambda: {"/tokenize": {"tokens": [1, 2]}})  # answers by path
    version: str = "default"
    began: Counter[int] = field(default_factory=Counter)  # streams by row
    hung_up: set[int] = field(default_factory=set)  # rows that paused
    generated: int = 0
    url: str = ""

    @contextlib.contextmanager
    def running(self) -> Iterator["StreamPeer"]:
        loop, ready = asyncio.new_event_loop(), threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=4096)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await stopped.wait()
            server.close()

        async def prepare() -> asyncio.Event:
            return asyncio.Event()

        stopped = loop.run_until_complete(prepare())
        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        assert ready.wait(30)
        yield self
        loop.call_soon_threadsafe(stopped.set)
        thread.join(30)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body, path = json.loads(await reader.readexactly(length) or b"null"), head.split()[1].partition("?")[0]
            if path == "/health" and self.busy:
                await reader.read()
            elif path == "/v1/completions" and self.status != 200:
                writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.status)
            elif path == "/v1/completions" and body.get("stream") and not self.raw:
                await self._stream(reader, writer, body)
            else:
                text = self.raw if self.raw and path == "/v1/completions" else self._other(path, body).encode()
                status = "404 No" if text == b"null" else "200 OK"
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(text), text))
            await writer.drain()
        writer.close()

    def _other(self, path: str, body: Any) -> str:
        if path == "/metrics":
            return f'x:generation_tokens_total{{a="b"}} {self.generated}.0\n'
        if path == "/update_weight_version":
            self.version = body["new_version"]
        known = {
            "/health": {},
            "/v1/models": {"data": [{"id": "toy"}]},
            "/weight_info": {"weight_version": self.version},
        }
        return json.dumps((known | {"/update_weight_version": {}} | self.others).get(path))

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        if self.refuses:
            self.refuses -= 1
            wait = 0 if self.refuses else self.last_wait
            writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: %d\r\nContent-Length: 4\r\n\r\nbusy" % wait)
            return
        row, begun = body["prompt"][0], max(len(body["prompt"]) - 2, 0)
        self.began[row] += 1
        script, random, sent = Script(row, self.longest), np.random.default_rng(row), b""
        end = min(len(script.ids), begun + body["max_tokens"])
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for first, last in _cuts(random, begun, end, body.get("stream_interval", 1)):
            sent += b": ping\n\n" if row % 5 == 0 else b""
            sent += b"data: " + self._event(script, body, first, last, end).encode() + b"\r\n\r\n"
            self.generated += last - first
            if last - begun >= self.breaks.get(row, last + 1):
                del self.breaks[row]
                await _write(writer, random, sent)
                writer.write(b"0\r\n\r\n" * (row % 2))
                return
            if last - begun >= self.pauses.get(row, last + 1):
                await _write(writer, random, sent)
                if not await reader.read(1):
                    self.hung_up.add(row)
                    self.generated += (end - last) * self.goes_on
                return
            if not self.buffers:
                await _write(writer, random, sent)
                sent = b""
        sent += b"data: [DONE]\n\n"
        if self.buffers:
            writer.write(b"%x\r\n%s\r\n" % (len(sent), sent))
        else:
            await _write(writer, random, sent)
        writer.write(b"0\r\n\r\n")

    def _event(self, script: Script, body: dict[str, Any], first: int, last: int, end: int) -> str:
        ids, ended = script.ids[first:last], last == end
        scores = {"tokens": [f"token_id:{x}" for x in ids], "token_logprobs": script.logprobs[first:last]}
        if body["logprobs"]:
            tops = [TOPS[entropy] for entropy in script.entropy[first:last].tolist()]
            scores["top_logprobs"] = [{f"token_id:{x}": math.log(p) for x, p in top.items()} for top in tops]
        reason = None if not ended else "stop" if ids[-1] == EOS else "length"
        choice = {"index": 0, "text": "é\u2028" * len(ids), "token_ids": ids, "logprobs": scores}
        choice |= {"finish_reason": reason, "stop_reason": None, "prompt_token_ids": body["prompt"]}
        return json.dumps({"choices": [choice | self.changes]}, ensure_ascii=False)


def _cuts(random: np.random.Generator, first: int, end: int, interval: int) -> Iterator[tuple[int, int]]:
    """The first token by itself, then ragged chunks of at most `interval` tokens."""
    last = first + 1
    while first < end:
        yield first, min(last, end)
        first, last = last, last + int(random.integers(1, interval + 1))


async def _write(writer: asyncio.StreamWriter, random: np.random.Generator, data: bytes) -> None:
    """Send bytes in pieces that end anywhere, also inside of a character."""
    while data:
        size = int(random.integers(1, 2000))
        piece, data = data[:size], data[size:]
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(0)
