# SPDX-License-Identifier: Apache-2.0
"""The gate inside `model.generate` of transformers, as a logits processor.

transformers runs custom processors after its own penalties and before the temperature, top-k and top-p warpers, so
the entropy that ends a grace window early is that of the policy at temperature 1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from ..gate.automaton import TokenAutomaton
from ..gate.streaming import GateRequest
from .engine import TurnEngine
from .host_gate import HostGates


class TransformersEngine(TurnEngine):
    """`model.generate` of the model in training, unwrapped; `*turn` is as for `TurnEngine`."""

    _pads = True

    def __init__(self, *turn: Any, model: Callable[[], PreTrainedModel]) -> None:
        super().__init__(*turn)
        self._model = model

    def _each(self, gates: list[GateRequest | None], limits: list[int | None]) -> AbstractContextManager:
        if not any(gates) and not any(limits):
            return nullcontext()
        automata = {} if self.setup is None else {self.setup.marker: self.setup.automaton}
        return gated_generate(self._model(), gates, automata, limits)


class GateLogitsProcessor(LogitsProcessor):
    """Runs the gate of each row of one call of `generate`.

    The first call marks the width of the (left-padded) prompts; every later one brings one new token per row. Rows
    that have ended still receive padding, which is ignored. All gated rows share sentinel and EOS ids, and the
    automata (by marker) know the thought delimiters of the requests.
    """

    def __init__(self, requests: Sequence[GateRequest | None], automata: Mapping[str, TokenAutomaton]) -> None:
        gated = [request for request in requests if request is not None]
        self._sentinel = gated[0].sentinel if gated else None
        self._ends = {*gated[0].eos_ids, self._sentinel} if gated else set()
        self._requests, self._automata = requests, automata
        self._gates = HostGates(len(requests))
        self._outputs: list[list[int]] | None = None  # before the first call

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Consume the newest token of each running row and force or forbid the sentinel, in a copy of the logits."""
        if len(input_ids) != len(self._requests):
            raise ValueError(
                f"the gate was prepared for {len(self._requests)} rows but generate runs {len(input_ids)}. Beam "
                "search and num_return_sequences > 1 are not supported: repeat the prompts instead."
            )
        if self._sentinel is None:
            return scores
        if self._outputs is None:
            self._outputs = [[] for _ in self._requests]
            for row, request in enumerate(self._requests):
                if request is not None:
                    automaton, prompt = self._automata[request.marker], input_ids[row].tolist()
                    self._gates.admit(row, request, automaton, self._outputs[row], prompt)
        else:
            for row, token in enumerate(input_ids[:, -1].tolist()):
                self._outputs[row].append(token)
                if token in self._ends:
                    self._gates.drop(row)
        scores = scores.clone()
        # The sentinel ends any row of this batch, so an ungated one must not sample it either.
        scores[:, self._sentinel] = -torch.inf
        self._gates.apply(scores)
        return scores


class RowLimits(StoppingCriteria):
    """Ends each row of one call of `generate` at its own number of new tokens (None: that of the call)."""

    def __init__(self, limits: Sequence[int | None]) -> None:
        self._limits = torch.tensor([2**62 if limit is None else limit for limit in limits])
        self._first: int | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        """Rows that have reached their length, shape (B,), after one more token each."""
        if self._first is None:
            self._first = input_ids.shape[1]
        return (self._limits <= input_ids.shape[1] - self._first + 1).to(input_ids.device)


@contextmanager
def gated_generate(
    model: PreTrainedModel,
    requests: Sequence[GateRequest | None],
    automata: Mapping[str, TokenAutomaton],
    limits: Sequence[int | None] = (),
) -> Iterator[None]:
    """While active, `model.generate` (a PEFT model is fine) runs the gate; a stopped row ends with its sentinel.

    Each row has a gate or None, and a limit of new tokens (None, or no limits: that of the call).
    """
    sentinels = {request.sentinel for request in requests if request is not None}
    before = model.__dict__.get("generate")
    generate = model.generate

    def gated(*args: Any, generation_config: GenerationConfig | None = None, **kwargs: Any) -> Any:
        config = copy(generation_config if generation_config is not None else model.generation_config)
        eos_ids = kwargs.pop("eos_token_id", config.eos_token_id)
        eos_ids = [] if eos_ids is None else [eos_ids] if isinstance(eos_ids, int) else list(eos_ids)
        config.eos_token_id = [*eos_ids, *sentinels]
        processors = LogitsProcessorList(kwargs.pop("logits_processor", None) or [])
        processors.append(GateLogitsProcessor(requests, automata))
        if any(limits):
            criteria = kwargs.pop("stopping_criteria", None) or []
            kwargs["stopping_criteria"] = StoppingCriteriaList([*criteria, RowLimits(limits)])
        return generate(*args, generation_config=config, logits_processor=processors, **kwargs)

    model.generate = gated
    try:
        yield
    finally:
        if before is None:
            del model.generate
        else:
            model.generate = before
