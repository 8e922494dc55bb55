# SPDX-License-Identifier: Apache-2.0
"""The gate inside `model.generate` of transformers, as a logits processor.

transformers runs custom processors after its own penalties and before the temperature, top-k and top-p warpers, so
the entropy that ends a grace window early is that of the policy at temperature 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..gate.automaton import TokenAutomaton
from ..gate.parameters import GateRequest, parse_gate_parameters
from .slots import SlotGates


class GateLogitsProcessor(LogitsProcessor):
    """Runs the gate of each row of one call of `generate`.

    The first call marks the width of the (left-padded) prompts; every later one brings one new token per row. Rows
    that have ended go on receiving padding, which is not looked at.

    Args:
        requests (Sequence[GateRequest | None]): Gate of each row, length B; None runs ungated.
        automata (Mapping[str, TokenAutomaton]): Markers by name, compiled over at least V tokens and with the thought
            delimiters of the requests.

    Raises:
        ValueError: If a marker is missing or the requests differ in sentinel or EOS ids, which are one per batch here.
    """

    def __init__(self, requests: Sequence[GateRequest | None], automata: Mapping[str, TokenAutomaton]) -> None:
        gated = [request for request in requests if request is not None]
        unknown = {request.marker for request in gated} - automata.keys()
        if unknown:
            raise ValueError(f"no automaton for the markers {sorted(unknown)}, only for {sorted(automata)}.")
        ends = {(request.sentinel, request.eos_ids) for request in gated}
        if len(ends) > 1:
            raise ValueError(f"all rows of a batch must share sentinel and EOS ids, got {len(ends)} different pairs.")
        self._num_rows = len(requests)
        self._sentinel, eos_ids = ends.pop() if ends else (None, frozenset())
        self._ends = np.array(sorted({*eos_ids, self._sentinel} - {None}), dtype=np.int64)
        self._gates = SlotGates(len(requests), lambda marker, _: automata[marker])
        for row, request in enumerate(requests):
            if request is not None:
                self._gates.admit(row, request)
        self._running = self._gates.is_gated(np.arange(len(requests)))
        self._started = False

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Consume the newest token of each running row and force or forbid the sentinel.

        Args:
            input_ids (torch.LongTensor): Prompts and tokens so far, shape (B, T).
            scores (torch.FloatTensor): Logits of the next token, shape (B, V).

        Returns:
            torch.FloatTensor: A copy with the decisions, shape (B, V).
        """
        if len(input_ids) != self._num_rows:
            raise ValueError(
                f"the gate was prepared for {self._num_rows} rows but generate runs {len(input_ids)}. Beam search and "
                "num_return_sequences > 1 are not supported: repeat the prompts instead."
            )
        if self._started:
            tokens = input_ids[:, -1].cpu().numpy()
            self._running &= ~np.isin(tokens, self._ends)
            running = np.flatnonzero(self._running)
            self._gates.consume(running, tokens[None, running])
        self._started = True
        if self._sentinel is None:
            return scores
        scores = scores.clone()
        # The sentinel ends any row of this batch, so an ungated one must not sample it either.
        scores[:, self._sentinel] = -torch.inf
        running = np.flatnonzero(self._running)
        self._gates.edit(scores, running)
        return scores


@contextmanager
def gated_generate(
    model: PreTrainedModel, parameters: Sequence[Mapping[str, Any] | None], automata: Mapping[str, TokenAutomaton]
) -> Iterator[None]:
    """While active, `model.generate` runs the gate; a stopped row ends with its sentinel.

    Args:
        model (PreTrainedModel): The model whose `generate` is called, unwrapped; a PEFT model is fine.
        parameters (Sequence[Mapping[str, Any] | None]): `gate_parameters` of each row of the next calls, length B, or
            None for a row without a gate.
        automata (Mapping[str, TokenAutomaton]): Compiled markers by name.

    Raises:
        ValueError: If parameters are inconsistent.
    """
    requests = [parse_gate_parameters(row) for row in parameters]
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
        return generate(*args, generation_config=config, logits_processor=processors, **kwargs)

    model.generate = gated
    try:
        yield
    finally:
        if before is None:
            del model.generate
        else:
            model.generate = before
