# SPDX-License-Identifier: Apache-2.0
"""An engine that is any server with streaming: `ServerEngine` with the gate on the client's side (`stream.py`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .engine import Completion, Request, ServerError
from .server_engine import Batch, Row, ServerEngine
from .stream_rollout import GATE


class StreamEngine(ServerEngine):
    """A server without the gate, which the main process talks to for all of them.

    Besides what `ServerEngine` takes: `text`, with what the policy's tokenizer makes of it, and `report`, which takes
    metrics on the main process. `connection` has a `StreamServer`, `check_reload()` refuses one without new weights.
    """

    def __init__(
        self,
        *turn: Any,
        text: tuple[str, list[int]],
        report: Callable[[Mapping[str, float]], None],
        **server: Any,
    ) -> None:
        self._text, self._report = text, report
        self._trained_on = server["sampling"]()  # a server may be lost in an evaluation, which samples otherwise
        super().__init__(*turn, **server)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See [`Engine.generate`]."""
        found = super().generate(requests)
        if self._connection is not None:
            self._report({"waste_share": self._waste})
        return found

    def _split(self, row: int, ids: list[int]) -> tuple[list[int], bool]:
        return ids, self._local[row].finish_reason == GATE

    def _complete(self, everything: list[Row]) -> Batch:
        prompts, gates, limits = zip(*everything, strict=True)
        found = self._connection.gate.complete(prompts, self._sampling(), gates, self._eos_ids, limits)
        batch = Batch(found, self._connection.gate.waste)
        if self._named:  # a server that has them now had them then
            self._connection.gate.check_weights(self._named)
        return batch

    def _name(self) -> None:
        super()._name()
        if not self._named:
            raise ServerError(
                "the server keeps no names of weights (/update_weight_version), so one that was restarted would go "
                "unnoticed. Serve with a newer vLLM, and VLLM_SERVER_DEV_MODE=1 in its environment."
            )

    def _probe(self) -> None:
        self._connection.check_reload()
        gate = self._connection.gate
        gate.automaton = None if self.setup is None else self.setup.automaton
        gate.try_out(self._trained_on, self._eos_ids, *self._text)
