# SPDX-License-Identifier: Apache-2.0
"""An engine that is a vLLM server: a request per rollout, weights that are proven, a server that may be restarted."""

import concurrent.futures
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..gate.parameters import GateRequest
from .engine import Request, ServerError, ServerLost, TurnEngine
from .server_answers import Choice

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
"""How often a batch is generated, or weights are sent, before a server that keeps dying ends the run."""


Row = tuple[list[int], GateRequest | None, int | None]
"""Prompt, gate and length limit of one completion."""


@dataclass(frozen=True)
class Batch:
    """Rollouts of all processes, and the share of the tokens generated for them that none of them has."""

    choices: list[Choice]
    waste: float = 0.0


@dataclass(eq=False)
class Begun:
    """Rollouts that are generated during training; `found` is on the main process only."""

    digest: str  # of the rows of all processes
    found: concurrent.futures.Future | None  # a `Batch`
    taken: bool = False  # asked for since


class ServerEngine(TurnEngine):
    """A vLLM server, which the main process talks to for all of them. A turn calls `complete`.

    Args:
        *turn (Any): As for `TurnEngine`.
        connection (Any): On the main process: `gate`, its `GateServer`; `weights`, the folder of the weights that were
            sent last ("": they went another way); `reconnect()` for a server that was restarted. None elsewhere.
        sampling (Callable[[], dict]): Body of a completion request, as of now.
        send (Callable[[], None]): Sends the weights of the policy, once; called on every process.
        exchange (Any): `Collectives` of the training processes.
        process (int): Number of this one.
        timeout (float): Seconds to wait for a server that was lost.
    """

    def __init__(
        self,
        *turn: Any,
        connection: Any,
        sampling: Callable[[], dict[str, Any]],
        send: Callable[[], None],
        exchange: Any,
        process: int,
        timeout: float,
    ) -> None:
        super().__init__(*turn)
        self._connection, self._sampling, self._send = connection, sampling, send
        self._exchange, self._process, self._timeout = exchange, process, timeout
        self._local: list[Choice] = []  # of the last turn
        self._waste = 0.0  # in it
        self._rows: list[tuple[GateRequest | None, int | None]] | None = None
        self._run, self._sent, self._named = secrets.token_hex(8), 0, ""
        self._begun: Begun | None = None
        self._together(self._probe)

    def _each(self, gates: list[GateRequest | None], limits: list[int | None]) -> AbstractContextManager:
        self._rows = list(zip(gates, limits, strict=True))
        stack = ExitStack()
        stack.callback(setattr, self, "_rows", None)
        return stack

    def sync_weights(self) -> None:
        """Send the policy's weights, to a restarted server again; ServerError if it cannot take them or stays away.

        Generation that was begun is finished first, under the weights that it began with.
        """
        lost = self._on_main(self._lost_begun) if self.begun else None
        if lost is not None:
            self._begun.found = None  # it is generated where it is asked for

        def attempt() -> Any:
            return self._shared(self._send) or self._on_main(self._name)

        self._retried(attempt, "while weights were sent to it", lost=lost)

    def _name(self) -> None:
        """Name the weights that the server has now, for requests that cannot name them."""
        self._sent += 1
        name = f"{self._run}-{self._sent}"
        self._named = name if self._connection.gate.name_weights(name) else ""
        if not self._named and self._sent == 1:
            logger.warning("The vLLM server keeps no names of weights: a restart between two batches goes unnoticed.")

    def complete(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[list, list, list, None]:
        """One completion of each local prompt, under its gate where `generate` asks for it.

        It has the arguments and results of TRL's `VLLMGeneration.generate`: prompt ids, completion ids, a list of
        log-probs per token, None. If the server is lost meanwhile, the whole batch is dropped: the rollouts that have
        finished by then are the short ones. The batch is generated again once the server has the weights again.
        """
        rows = [(None, None)] * len(prompts) if self._rows is None else self._rows
        sizes = self._exchange.objects([len(prompts)])
        everything = self._exchange.objects([(ids, *row) for ids, row in zip(prompts, rows, strict=True)])
        # Evaluation asks for its own completions between the two.
        begun = None if self._rows is None else self._take(everything)

        def once() -> Any:
            nonlocal begun
            known, begun = begun, None  # what was lost with a server is generated again
            return self._on_main(lambda: self._complete(everything) if known is None else known.result())

        with profiler or nullcontext():
            batch: Batch = self._retried(once, "in one batch", self.sync_weights)
        first = sum(sizes[: self._process])
        self._local = local = batch.choices[first : first + len(prompts)]
        self._waste = batch.waste
        logprobs = [[[value] for value in choice.logprobs] for choice in local]
        return prompts, [choice.token_ids for choice in local], logprobs, None

    # ---- During training --------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether rollouts are begun that nobody has asked for yet."""
        return self._begun is not None and not self._begun.taken

    def begin(self, requests: Sequence[Request]) -> None:
        """Begin to generate what `generate` will be asked for next, and return at once.

        The server keeps its weights until that is done. An error of the server is raised where the rollouts are asked
        for; a server that was lost is waited for there, and generates them again with its weights at that time.
        """
        asked = zip((request.input_ids for request in requests), *self._gates_and_limits(requests), strict=True)
        everything = self._exchange.objects(list(asked))
        found = None
        if self._connection is not None:
            found = concurrent.futures.Future()
            # Not in a pool: an interpreter that ends waits for the threads of a pool.
            threading.Thread(target=_fulfil, args=(found, partial(self._complete, everything)), daemon=True).start()
        self._begun = Begun(_digest(type(self).__name__, everything), found)

    def forget_begun(self) -> None:
        """Nothing is begun any more: the step that asked for it is done."""
        self._begun = None

    def begun_state(self) -> dict[str, Any]:
        """The batch that was begun, once complete, as a checkpoint holds it: JSON values and arrays; empty if none."""
        if self._begun is None or self._begun.found is None or self._begun.found.exception() is not None:
            return {}
        batch: Batch = self._begun.found.result()
        choices = batch.choices
        return {
            "digest": self._begun.digest,
            "waste": batch.waste,
            "lengths": np.array([len(choice.token_ids) for choice in choices], dtype=np.int64),
            "token_ids": np.array([token for choice in choices for token in choice.token_ids], dtype=np.int64),
            "logprobs": np.array([value for choice in choices for value in choice.logprobs], dtype=np.float64),
            "finish_reason": [choice.finish_reason for choice in choices],
            "stop_reason": [choice.stop_reason for choice in choices],
        }

    def load_begun(self, state: dict[str, Any]) -> None:
        """Restore `begun_state()`."""
        self._begun = None
        if not state:
            return
        ends = np.cumsum(state["lengths"])[:-1]
        columns = [[part.tolist() for part in np.split(state[name], ends)] for name in ("token_ids", "logprobs")]
        found = concurrent.futures.Future()
        choices = [*map(Choice, *columns, state["finish_reason"], state["stop_reason"])]
        found.set_result(Batch(choices, state["waste"]))
        self._begun = Begun(state["digest"], found)

    def _take(self, everything: list[Row]) -> concurrent.futures.Future | None:
        """The batch that was begun, if it is the one asked for now; None: none was, or not the main process."""
        if not self.begun:
            return None
        self._begun.taken = True
        if self._begun.digest == _digest(type(self).__name__, everything):
            return self._begun.found
        logger.warning(
            "The rollouts that were generated during training are not those of this step, as when a run resumes "
            "inside a batch, with other data or on another number of processes. They are dropped, and the step is "
            "generated now."
        )
        self.sync_weights()
        return None

    def _lost_begun(self) -> ServerLost | None:
        """The loss of the server that ended what was begun, once that has ended."""
        error = None if self._begun.found is None else self._begun.found.exception()
        return error if isinstance(error, ServerLost) else None

    def _complete(self, everything: list[Row]) -> Batch:
        prompts, gates, limits = zip(*everything, strict=True)
        gates = [gate and replace(gate, weights=self._connection.weights) for gate in gates]
        found = self._connection.gate.complete(prompts, self._sampling(), gates, self._eos_ids, limits)
        stopped = [gate and row.token_ids == [gate.sentinel] for gate, row in zip(gates, found, strict=True)]
        # A stop before the first token is a refusal, or that of a prefix. Requests without a gate name no weights, nor
        # do any where they went another way than through a folder: a server that has them now had them then.
        if any(stopped) or None in gates:
            self._probe()
        if self._named and (None in gates or not self._connection.weights):
            self._connection.gate.check_weights(self._named)
        return Batch(found)

    def _probe(self) -> None:
        if self.setup is not None:
            self._connection.gate.probe(
                self.setup.marker,
                self.setup.automaton.fingerprint,
                self.setup.sentinel,
                self._eos_ids,
                weights=self._connection.weights,
                delimiters=self.setup.delimiters,
            )

    def _retried(
        self,
        attempt: Callable[[], Any],
        when: str,
        then: Callable[[], None] = lambda: None,
        lost: ServerLost | None = None,
    ) -> Any:
        """Result of an attempt; if it loses the server, wait for it, call `then`, and try again.

        A server that is `lost` already is waited for first. One that is healthy and is lost again where its gate is
        probed has cost an attempt.
        """
        for _ in range(_ATTEMPTS):
            if lost is None:
                found = attempt()
                if not isinstance(found, ServerError):
                    return found
                if not isinstance(found, ServerLost):
                    raise found
                lost = found
            last, lost = lost, self._recover(lost)
            if lost is None:
                then()
        raise ServerError(f"the vLLM server was lost {_ATTEMPTS} times {when}; last: {last}")

    def _recover(self, lost: ServerLost) -> ServerLost | None:
        """Wait for the server to come back; returns how it was lost while it was asked for its gate."""
        logger.warning("The vLLM server was lost: %s Waiting up to %g s for it to come back.", lost, self._timeout)
        self._together(lambda: self._connection.gate.wait(self._timeout))

        def probe() -> None:
            self._connection.reconnect()
            self._probe()

        failure = self._on_main(probe)
        if isinstance(failure, ServerError) and not isinstance(failure, ServerLost):
            raise failure
        return failure

    def _together(self, work: Callable[[], None]) -> None:
        """Run something on the main process; if it fails, every process does."""
        failure = self._on_main(work)
        if isinstance(failure, ServerError):
            raise failure

    def _on_main(self, work: Callable[[], Any]) -> Any:
        return self._shared(work if self._connection is not None else lambda: None)

    def _shared(self, work: Callable[[], Any]) -> Any:
        """The main process's result, or the `ServerError` that it ended in; the others have nothing to do with it."""
        try:
            result = work()
        except ServerError as error:
            result = error
        return self._exchange.first(result)


def _fulfil(found: concurrent.futures.Future, work: Callable[[], Any]) -> None:
    try:
        found.set_result(work())
    except Exception as error:  # noqa: BLE001 - raised where the rollouts are asked for
        found.set_exception(error)


def _digest(engine: str, everything: list[Row]) -> str:
    """Tells batches apart, also in another process: by the engine, and the part of a row that decides its tokens."""
    rows = [(ids, gate and (gate.spec, gate.keep, gate.prefix_length), limit) for ids, gate, limit in everything]
    return hashlib.blake2b(repr((engine, rows)).encode(), digest_size=16).hexdigest()
