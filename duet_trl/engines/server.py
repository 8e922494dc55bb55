# SPDX-License-Identifier: Apache-2.0
"""A vLLM server that runs the gate, as its client sees it.

A server without the gate ignores `duet_` parameters without a word, one with another tokenizer sees markers elsewhere,
and one that was restarted has old weights. So the gate is probed at start-up, and every request names the marker's
fingerprint and its weights: an engine that differs answers with a forced stop before the first token.
"""

import asyncio
import json
import logging
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from ..gate.parameters import GateRequest, gate_parameters
from ..gate.replay import GateSpec
from ..gate.thoughts import Delimiters
from .engine import ServerError, ServerLost
from .server_answers import Choice, NoSuchPath, choices, refusal

_PROMPTS_PER_REQUEST = 8
"""One body carries one set of parameters, so rollouts that share theirs share requests; small ones spread over the
engines of a data-parallel server."""

_MOST_REQUESTS = 256
"""Larger batches get larger requests where rollouts share their parameters."""

_HEARTBEAT_SECONDS = 5.0
_HEARTBEATS_MISSED = 6

_SLOW_SECONDS = 600.0
"""Longer than any of the requests of a batch takes, as a rule."""

_START = (
    "vllm serve <model> --host 127.0.0.1 --port {port} --logits-processors duet_trl.engines.vllm:DUETLogitsProcessor "
    "--logprobs-mode processed_logprobs (docs/servers.md has the whole line)"
)

T = TypeVar("T")
logger = logging.getLogger(__name__)


class GateServer:
    """Client of one vLLM server, at `http://127.0.0.1:8000` or the like; `token` is what `TokenGuard` asks for."""

    start = _START
    """How to start such a server, on {port}."""
    buffer_bytes = 2**16
    """Read ahead from each connection."""
    heard = 0
    """Pieces of answers so far, where they come in pieces: a server that sends some is not silent."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._model: str | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="duet-server-client", daemon=True).start()

    def wait(self, timeout: float) -> None:
        """Return once the server is healthy; ServerLost if it is not within `timeout` seconds."""
        if urlsplit(self.base_url).path.endswith("/v1"):
            raise ServerError(f"leave /v1 out of vllm_server_base_url={self.base_url!r}: it is added to each request.")
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._ask("GET", "/health", seconds=10.0)
                break
            except ServerLost as error:
                if time.monotonic() >= deadline:
                    raise ServerLost(
                        f"no healthy vLLM server at {self.base_url} after {timeout:g} s ({error}). Start it: "
                        f"{self._started}, or correct vllm_server_base_url, vllm_server_host and vllm_server_port; "
                        "vllm_server_timeout sets how long to wait."
                    ) from error
            time.sleep(0.5)
        self._model = None

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Mapping[str, Any],
        gates: Sequence[GateRequest | None],
        eos_ids: Sequence[int],
        limits: Sequence[int | None] | None = None,
    ) -> list[Choice]:
        """One completion of each prompt, in their order, running at the same time.

        Each one whose gate and limit no other shares is its own request. More requests than half of the files
        that this process may open (`ulimit -n`) wait for each other.

        Args:
            prompts (Sequence[Sequence[int]]): Token ids, length N; a prompt may repeat.
            sampling (Mapping[str, Any]): Body of a completion request: temperature, max_tokens and so on.
            gates (Sequence[GateRequest | None]): Gate of each rollout; None: none.
            eos_ids (Sequence[int]): All ids that end a rollout by itself.
            limits (Sequence[int | None] | None): Maximum tokens of each rollout; None: that of `sampling`.

        Raises:
            ServerLost: If any of them was not completed. None of them is returned then: those that had finished are
                the short ones, and to keep them would bias the batch.
            ServerError: If the server refuses a request; its own text is part of the message.
        """
        limits = limits or [None] * len(prompts)
        model = self._served()

        async def complete(session: aiohttp.ClientSession) -> list[Choice]:
            done: list[Choice | None] = [None] * len(prompts)
            room = room_for_requests()

            async def send(rows: list[int]) -> None:
                first = rows[0]
                own = sampling if limits[first] is None else {**sampling, "max_tokens": limits[first]}
                url = f"{self.base_url}/v1/completions"
                body = _body(model, [list(prompts[row]) for row in rows], own, gates[first], eos_ids)
                async with room:
                    # The heartbeat notices a server that is away; with 4,096 connections to make 30 s may be too few.
                    answer = await _call(session, "POST", url, body, connect_seconds=None)
                for row, choice in zip(rows, choices(answer, len(rows)), strict=True):
                    done[row] = choice

            await self._guarded(session, [send(rows) for rows in _batches(zip(gates, limits, strict=True))])
            return done

        return self._run(complete)

    def probe(
        self,
        marker: str,
        fingerprint: str,
        sentinel: int,
        eos_ids: Sequence[int],
        weights: str = "",
        delimiters: Delimiters | None = None,
    ) -> None:
        """Make sure that the gate of this run is active there: it must stop a rollout after its first token.

        Raises:
            ServerError: If the gate is absent, of another version, or was compiled for another tokenizer, or if
                log-probabilities are not those of the sampling distribution.
            ServerLost: If the server does not answer, or has other weights than those of the path `weights`.
        """
        spec = GateSpec(1, 1, 0, poll_interval=1)  # trims where the first token completes a marker, aborts elsewhere

        def ask(fingerprint: str, weights: str) -> Choice:
            gate = GateRequest(spec, False, marker, sentinel, frozenset(eos_ids), fingerprint, weights, delimiters)
            body = {"max_tokens": 3, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "ignore_eos": True}
            return self.complete([[eos_ids[0]]], body, [gate], [])[0]

        found = ask(fingerprint, weights)
        ids = found.token_ids
        if sentinel not in ids:
            raise ServerError(
                f"the vLLM server at {self.base_url} does not run the gate: it ignored the duet_ parameters of a "
                f"request. Restart it with the processor: {self._started}."
            )
        if len(ids) == 1:
            if weights and len(ask(fingerprint, "").token_ids) > 1:
                raise ServerLost(f"the vLLM server at {self.base_url} has not loaded the weights in {weights}.")
            raise ServerError(
                f"the vLLM server at {self.base_url} compiled the marker {marker!r} to another automaton than this "
                "run. Its model has another tokenizer or vocabulary size, or its duet_trl is another version: serve "
                "the model that is trained, with the same duet_trl."
            )
        if len(ids) != 2 or ids[-1] != sentinel:
            raise ServerError(f"the gate at {self.base_url} stopped a rollout at {len(ids) - 1} tokens instead of 1.")
        if found.logprobs[-1] != 0.0:
            raise ServerError(
                f"the vLLM server at {self.base_url} returns log-probabilities from before temperature and gate. "
                "Restart it with --logprobs-mode processed_logprobs."
            )

    def reload_weights(self, path: str) -> None:
        """Let every worker load the weights in a folder, and forget what it cached under the old ones.

        ServerError: it may not read the folder, or failed while reading; its weights are undefined then.
        """
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._ask("POST", "/collective_rpc", body, failure=ServerError)
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Forget what was cached under old weights; ServerLost or ServerError if the server cannot."""
        # As long as any request runs, one that was given up included, vLLM keeps the whole cache unless it is told to
        # restart that request.
        path = "/reset_prefix_cache?reset_running_requests=true"
        answer = self._ask("POST", path, failure=ServerError)
        if answer is not None and not answer["success"]:
            raise ServerError(
                f"{self.base_url}{path} failed: the server would continue with what it computed under the old weights."
            )

    def name_weights(self, name: str) -> bool:
        """Name the weights that were just sent; a server that is restarted forgets it. False: it keeps no names."""
        try:
            self._ask("POST", "/update_weight_version", {"new_version": name})
        except NoSuchPath:  # a vLLM older than these names
            return False
        return True

    def check_weights(self, name: str) -> None:
        """Make sure that the server has the weights that were sent under a name; ServerLost if it was restarted."""
        if self._ask("GET", "/weight_info")["weight_version"] != name:
            raise ServerLost(f"the vLLM server at {self.base_url} was restarted, and has other weights.")

    def configuration(self) -> dict[str, Any]:
        """Configuration that a vLLM server in development mode reports; ServerError for another answer."""
        answer = self._ask("GET", "/server_info?config_format=json")
        found = answer.get("vllm_config") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or "logprobs_mode" not in (found.get("model_config") or {}):
            raise ServerError(
                f"{self.base_url}/server_info is not that of a vLLM server: {str(answer)[:200]!r}. Weights are sent "
                "by vLLM's development endpoints: use a vLLM that setup.cfg names, under VLLM_SERVER_DEV_MODE=1."
            )
        return found

    def _served(self) -> str:
        """Name of the model that is served."""
        if self._model is None:
            answer = self._ask("GET", "/v1/models", seconds=30.0)
            try:
                self._model = answer["data"][0]["id"]
            except (IndexError, KeyError, TypeError) as error:
                raise ServerError(
                    f"{self.base_url}/v1/models names no model: {str(answer)[:200]!r}. Serve the one that is trained."
                ) from error
        return self._model

    @property
    def _started(self) -> str:
        """How to start it at this address."""
        return self.start.format(port=urlsplit(self.base_url).port or "<port>")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The answer to one request by itself; options as of `_call`."""
        return self._run(lambda session: _call(session, method, self.base_url + path, body, **options))

    async def _guarded(self, session: aiohttp.ClientSession, requests: list[Coroutine]) -> None:
        """Run requests together; the first failure, or a server that falls silent, ends all of them."""
        tasks = [asyncio.ensure_future(request) for request in requests]
        # One future for all of them: to wait for thousands one by one takes a pass over all for each that ends.
        ends = asyncio.ensure_future(self._heartbeat(session)), asyncio.gather(*tasks)
        try:
            waiting, heard = len(tasks), self.heard
            while True:
                done, _ = await asyncio.wait(ends, timeout=_SLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for end in done:
                    end.result()
                if done:
                    return
                before, waiting = waiting, sum(not task.done() for task in tasks)
                if waiting == before and heard == self.heard:
                    logger.warning(
                        "The vLLM server at %s has answered none of %d requests for %g s, though its health check "
                        "passes. If its own log shows no progress, restart it: the batch is generated again.",
                        *(self.base_url, waiting, _SLOW_SECONDS),
                    )
                heard = self.heard
        finally:
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, *ends, return_exceptions=True)

    async def _heartbeat(self, session: aiohttp.ClientSession) -> None:
        """A machine that vanishes closes no connection, and a rollout may take minutes: poll it meanwhile."""
        missed = heard = 0
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            try:
                await _call(session, "GET", f"{self.base_url}/health", seconds=2 * _HEARTBEAT_SECONDS)
                missed = 0
            except ServerLost as error:
                missed, heard = missed + 1 if heard == self.heard else 0, self.heard
                if missed >= _HEARTBEATS_MISSED:
                    raise ServerLost(f"the vLLM server at {self.base_url} fell silent ({error}).") from error

    def _run(self, work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
        """Run asynchronous work to its end, also from a notebook whose thread has its own loop."""

        async def with_session() -> T:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)  # vLLM closes one that idles for 5 s
            size = self.buffer_bytes
            async with aiohttp.ClientSession(connector=connector, headers=self.headers, read_bufsize=size) as session:
                return await work(session)

        future = asyncio.run_coroutine_threadsafe(with_session(), self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # an interrupt does not wait for the rollouts


def room_for_requests() -> asyncio.Semaphore:
    """Room for as many requests at a time as may be connected: each holds a file, and others need some, too."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return asyncio.Semaphore(2**20 if files == resource.RLIM_INFINITY else max(1, files // 2))


def _batches(asked: Iterable[tuple[GateRequest | None, int | None]]) -> list[list[int]]:
    """Rows with equal gates and limits, `_PROMPTS_PER_REQUEST` at a time."""
    groups: dict[tuple[GateRequest | None, int | None], list[int]] = {}
    for row, alike in enumerate(asked):
        groups.setdefault(alike, []).append(row)
    size = max(_PROMPTS_PER_REQUEST, -(-sum(map(len, groups.values())) // _MOST_REQUESTS))
    return [rows[first : first + size] for rows in groups.values() for first in range(0, len(rows), size)]


def _body(
    model: str,
    prompts: list[list[int]],
    sampling: Mapping[str, Any],
    gate: GateRequest | None,
    eos_ids: Sequence[int],
) -> dict[str, Any]:
    stops = {*(sampling.get("stop_token_ids") or ()), *eos_ids}
    body = {"model": model, "prompt": prompts, "logprobs": 0, "return_token_ids": True, **sampling}
    if gate is not None:
        body["vllm_xargs"] = {**(sampling.get("vllm_xargs") or {}), **gate_parameters(gate)}
        stops.add(gate.sentinel)
    return {**body, "stop_token_ids": sorted(stops)}


async def _call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    seconds: float | None = None,
    connect_seconds: float | None = 30.0,
    failure: type[ServerError] = ServerLost,
) -> Any:
    """One request; its JSON, or None where the answer is empty. `failure` is what status 5xx raises."""
    timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=connect_seconds)
    try:
        async with session.request(method, url, json=body, timeout=timeout) as response:
            text = await response.text()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ServerLost(f"{method} {url} failed: {type(error).__name__} {error}".rstrip()) from error
    if response.status == 200:
        try:
            return json.loads(text) if text else None
        except json.JSONDecodeError as error:
            raise ServerError(f"{method} {url} was not answered by a vLLM server but with {text[:200]!r}.") from error
    raise refusal(method, url, response.status, text, failure)
