# SPDX-License-Identifier: Apache-2.0
"""vLLM inside the training process, as TRL's `vllm_mode="colocate"` runs it: gate per request, weights on a CPU.

TRL builds the engine without logits processors, calls `LLM.generate` with one set of sampling parameters for all
prompts, and loads weights in a way that vLLM's CPU backend cannot take. Each function here fixes one of the three.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ..gate.parameters import gate_parameters
from ..gate.streaming import GateRequest
from .engine import TurnEngine

if TYPE_CHECKING:
    from vllm import LLM

PROCESSOR = "duet_trl.engines.vllm:DUETLogitsProcessor"
"""Name under which an engine loads the gate."""


class ColocatedEngine(TurnEngine):
    """vLLM in the training process: `llm` runs the gate (`PROCESSOR`), `sync` brings the weights into it.

    The processes of a `group` share it under tensor parallelism: each runs the prompts of all of them.
    """

    def __init__(
        self, *turn: Any, llm: "LLM", sync: Callable[[], None], group: torch.distributed.ProcessGroup | None = None
    ) -> None:
        super().__init__(*turn)
        self._llm, self._sync, self._group = llm, sync, group

    def sync_weights(self) -> None:
        """See [`Engine.sync_weights`]."""
        self._sync()

    def _each(self, gates: list[GateRequest | None], limits: list[int | None]) -> AbstractContextManager:
        rows = list(zip(gates, limits, strict=True))
        if self._group is not None:
            gathered: list[list] = [[] for _ in range(self._group.size())]
            torch.distributed.all_gather_object(gathered, rows, group=self._group)
            rows = [row for rank in gathered for row in rank]
        if not any(gate or limit for gate, limit in rows):
            return nullcontext()
        gates, limits = zip(*rows, strict=True)
        return gated_requests(self._llm, gates, self._eos_ids, limits)


@contextmanager
def gated_requests(
    llm: "LLM",
    gates: Sequence[GateRequest | None],
    eos_ids: Sequence[int],
    limits: Sequence[int | None] | None = None,
) -> Iterator[None]:
    """While active, `llm.generate` gives each prompt its own gate; a stopped rollout ends with its sentinel.

    Under tensor parallelism `gates` and `limits` (maximum tokens; None: that of the call) are those of all ranks
    of the group, one rank after the other. `eos_ids` end gated and ungated rollouts alike.
    """
    generate = llm.generate

    def gated(prompts: Sequence[Any], sampling_params: Any = None, **kwargs: Any) -> Any:
        if len(prompts) != len(gates):
            raise ValueError(
                f"the gate was prepared for {len(gates)} prompts but {len(prompts)} are generated. Pass one "
                "entry per prompt; under tensor parallelism, those of the whole group."
            )
        base = llm.get_default_sampling_params() if sampling_params is None else sampling_params
        rows = zip(gates, limits or [None] * len(gates), strict=True)
        return generate(prompts, sampling_params=[_with_gate(base, *row, eos_ids) for row in rows], **kwargs)

    llm.generate = gated
    try:
        yield
    finally:
        del llm.generate


def reload_weights_cpu(llm: "LLM", named_weights: Iterable[tuple[str, "torch.Tensor"]]) -> None:
    """Replace all weights, by their checkpoint names, of an engine on vLLM's CPU backend, and forget what it cached.

    Tied embeddings need the reload that comes with the gate (`vllm.mend_reload`).
    """
    llm.llm_engine.model_executor.driver_worker.model_runner.reload_weights(weights_iterator=named_weights)
    llm.reset_prefix_cache()


def _with_gate(base: Any, gate: GateRequest | None, limit: int | None, eos_ids: Sequence[int]) -> Any:
    """A copy of sampling parameters that ends at every EOS id and carries one row's gate and length limit."""
    params = base.clone()
    if limit is not None:
        params.max_tokens = limit
    stops = {*(params.stop_token_ids or ()), *eos_ids}
    if gate is not None:
        params.extra_args = {**(params.extra_args or {}), **gate_parameters(gate)}
        stops.add(gate.sentinel)
    params.stop_token_ids = sorted(stops)
    return params
