# SPDX-License-Identifier: Apache-2.0
"""The gate inside vLLM, as one logits processor class for both of its model runners.

Name it when the engine starts, `LLM(logits_processors=["duet_trl.engines.vllm:DUETLogitsProcessor"])` or
`vllm serve --logits-processors duet_trl.engines.vllm:DUETLogitsProcessor`. It is not an entry point: that would reach
every vLLM process, and with asynchronous scheduling show the V1 runner's processors placeholder tokens. Requests carry
`duet_trl.gate.parameters`; those without any cost nothing.
"""

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor

from ..gate.automaton import TokenAutomaton, compile_automaton
from ..gate.markers import MARKERS, get_marker
from ..gate.parameters import parse_gate_parameters
from ..gate.streaming import GateRequest
from ..gate.thoughts import Delimiters, find_delimiters
from ..gate.vocabulary import vocabulary_bytes
from .device_gate import DeviceGates
from .host_gate import HostGates

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
except ImportError:  # a vLLM whose second runner takes no custom processors and leaves them to the first

    class V2LogitsProcessor:
        """Stands in for the interface of the V2 runner."""


if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

logger = logging.getLogger(__name__)


class DUETLogitsProcessor(V1LogitsProcessor, V2LogitsProcessor):
    """Runs the gate of each request that asks for one (Algorithm 1, lines 12-28).

    The V1 runner adds `(device, is_pin_memory)` to the configuration, the V2 runner `(req_states,)`. Every rank of a
    tensor-parallel group runs its own copy, which decides the same: a gate is a function of tokens and parameters.

    Raises:
        ValueError: If speculative decoding is on, or the engine has no tokenizer.
    """

    def __init__(self, vllm_config: "VllmConfig", *runner: Any) -> None:
        if vllm_config.speculative_config is not None:
            raise ValueError(
                "DUETLogitsProcessor decides token by token and does not support speculative decoding. "
                "Start the engine without speculative_config."
            )
        self._req_states: LogitsProcRequestState | None = runner[0] if len(runner) == 1 else None
        self._model_config = vllm_config.model_config
        self._markers = _Markers(vllm_config)
        self._gates: HostGates | DeviceGates
        if self._req_states is None:
            self._gates = HostGates(vllm_config.scheduler_config.max_num_seqs)
        else:
            self._gates = DeviceGates(self._req_states.max_num_reqs, self._req_states.device)
        if current_platform.is_cpu():
            mend_reload()
        delimiters = self._markers.delimiters()
        for name in MARKERS:
            self._gates.add_automaton(self._markers.compile(name, delimiters))
        if self._req_states is not None:
            self._gates.warm_up(self._req_states.vocab_size, self._req_states.all_token_ids.gpu)
        self._refusals: set[str] = set()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check the gate of a request as it is submitted; a ValueError becomes status 400 over HTTP."""
        request = parse_gate_parameters(sampling_params.extra_args, sampling_params.stop_token_ids or ())
        if request is not None:
            get_marker(request.marker, request.delimiters)

    # Interface of the V1 runner

    def is_argmax_invariant(self) -> bool:
        """False: a forced stop changes the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests through the slots of the batch. A preempted request returns here with its tokens."""
        if batch_update is None:
            return
        for slot in batch_update.removed:
            self._gates.drop(slot)
        for slot, params, prompt, output in batch_update.added:
            prompt = prompt or []  # None for a prompt that came as embeddings
            self._enter(slot, params, len(prompt), output, prompt)
        for source, target, direction in batch_update.moved:
            self._gates.swap(source, target)
            if direction == MoveDirectionality.UNIDIRECTIONAL:
                self._gates.drop(source)

    # Interface of the V2 runner

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Initialise a slot; the next `apply` reads what a preempted rollout has generated."""
        prompt_len = int(self._req_states.prompt_len.np[req_idx])
        return self._enter(req_idx, sampling_params, prompt_len, prompt_len)

    def apply_staged_writes(self) -> None:
        """Upload what `add_request` has staged."""
        self._gates.flush()

    # Both

    def apply(self, logits: torch.Tensor, ctx: "LogitsContext | None" = None) -> torch.Tensor:
        """Consume what was generated since the last call and write the decisions into the raw logits (B, V).

        `ctx` is the layout of the batch, from the V2 runner. V1: row = slot.
        """
        if ctx is None:
            self._gates.apply(logits)
        else:
            tokens = self._req_states.all_token_ids.gpu
            self._gates.apply(logits, ctx.expanded_idx_mapping, ctx.idx_mapping_np, ctx.pos, ctx.input_ids, tokens)
        return logits

    def _enter(self, slot: int, params: SamplingParams, prompt_len: int, *progress: list[int] | int) -> bool:
        """Put a request into a slot, with its output and its prompt (V1), or with the prompt's length (V2)."""
        request = parse_gate_parameters(params.extra_args)
        if request is None:
            self._gates.drop(slot)
            return False
        automaton = self._markers.compile(request.marker, request.delimiters)
        if self._accepts(request, automaton, prompt_len):
            self._gates.admit(slot, request, automaton, *progress)
        else:
            self._gates.refuse(slot, request.sentinel)
        return True

    def _accepts(self, request: GateRequest, automaton: TokenAutomaton, prompt_len: int) -> bool:
        """Whether this engine is the one the request was made for. An exception here would end the engine."""
        reason = ""
        if request.prefix_length > prompt_len:
            reason = f"it continues {request.prefix_length} tokens of a prompt that has {prompt_len}"
        elif request.weights and request.weights != self._model_config.model:
            reason = f"it asks for the weights in {request.weights}, loaded are those in {self._model_config.model}"
        elif request.fingerprint not in ("", automaton.fingerprint):
            reason = f"marker {request.marker!r} is another automaton here: its model has another tokenizer"
        if reason and reason not in self._refusals:
            self._refusals.add(reason)
            logger.warning("DUETLogitsProcessor stops a request before its first token: %s.", reason)
        return not reason


class _Markers:
    """Markers of one engine, each compiled once for its vocabulary."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self._model_config = vllm_config.model_config
        self._vocabulary: dict[Delimiters | None, list[bytes | None]] = {}
        self._compiled: dict[tuple[str, Delimiters | None], TokenAutomaton] = {}

    def delimiters(self) -> Delimiters | None:
        """The thought delimiters that its tokenizer was made for; most requests will name them."""
        return find_delimiters(self._tokenizer())

    def compile(self, name: str, delimiters: Delimiters | None) -> TokenAutomaton:
        """Token automaton of a marker over every row of the logits, for a model with such thoughts."""
        if delimiters not in self._vocabulary:
            shown = () if delimiters is None else delimiters.parts
            size = self._model_config.get_vocab_size()
            self._vocabulary[delimiters] = vocabulary_bytes(self._tokenizer(), size, shown)
        key = name, delimiters
        if key not in self._compiled:
            self._compiled[key] = compile_automaton(get_marker(*key), self._vocabulary[delimiters])
        return self._compiled[key]

    def _tokenizer(self) -> Any:
        tokenizer = cached_tokenizer_from_config(self._model_config)
        if tokenizer is None:
            raise ValueError(
                "DUETLogitsProcessor needs the engine's tokenizer. Start the engine with skip_tokenizer_init=False."
            )
        return tokenizer


def mend_reload() -> None:
    """Let every model runner of this process pack its output layer after `reload_weights`, however that is called.

    vLLM's CPU backend multiplies with packed copies of the weights. Its `reload_weights` packs every layer that it
    loads, but tied weights arrive once, as the embedding: the packed copy of the output layer would stay the old one,
    and the engine would silently sample from a partly stale policy.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner.reload_weights
    if original.__module__ == __name__:
        return

    @wraps(original, assigned=("__name__", "__doc__"))
    def reload_weights(runner: Any, *args: Any, **kwargs: Any) -> None:
        original(runner, *args, **kwargs)
        head = runner.get_model().lm_head
        head.quant_method.process_weights_after_loading(head)

    GPUModelRunner.reload_weights = reload_weights
