# SPDX-License-Identifier: Apache-2.0
"""Puts the gate into the engine that TRL generates with, and checks beforehand that it can work."""

import copy
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from ..config import DUETGRPOConfig
from ..gate.automaton import TokenAutomaton, compile_automaton
from ..gate.markers import get_marker
from ..gate.parameters import gate_parameters
from ..gate.replay import split_sentinel
from ..gate.sentinel import find_sentinel
from ..gate.thoughts import Delimiters, find_delimiters, parse_delimiters
from ..gate.vocabulary import vocabulary_bytes
from ..rollouts import Job
from .answer_region import Thoughts
from .lockstep import in_lockstep

if TYPE_CHECKING:
    from ..trainer import DUETGRPOTrainer
    from .server_generation import ServerGeneration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GateSetup:
    """The marker on the vocabulary of one tokenizer.

    Attributes:
        marker (str): Marker name or pattern of the configuration.
        automaton (TokenAutomaton): Compiled marker.
        sentinel (int): Token id the engine samples when the gate stops a rollout.
        eos_ids (tuple[int, ...]): Ids that end a rollout by themselves.
        delimiters (Delimiters | None): Of the model's thoughts.
    """

    marker: str
    automaton: TokenAutomaton
    sentinel: int
    eos_ids: tuple[int, ...]
    delimiters: Delimiters | None = None


def load_tokenizer(
    model: str | torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None, args: DUETGRPOConfig
) -> PreTrainedTokenizerBase:
    """The tokenizer GRPOTrainer would load, before it loads the model.

    Raises:
        ValueError: If a multimodal processor is given, or `extra_eos_tokens` names what is no token of it.
    """
    if tokenizer is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        tokenizer = AutoTokenizer.from_pretrained(name, **_source(args), truncation_side="left", padding_side="left")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            f"{type(tokenizer).__name__} is a multimodal processor; DUET trains on text. Pass the tokenizer as "
            "processing_class, or use GRPOTrainer."
        )
    _extra_eos_ids(tokenizer, args)
    return tokenizer


def thought_delimiters(tokenizer: PreTrainedTokenizerBase, args: DUETGRPOConfig) -> Delimiters | None:
    """What opens and closes the thoughts of this run; None: the model has none."""
    names = args.thought_delimiters
    return find_delimiters(tokenizer) if names is None else parse_delimiters(names)


def prepare_gate(model: str | torch.nn.Module, tokenizer: PreTrainedTokenizerBase, args: DUETGRPOConfig) -> GateSetup:
    """Compile the marker and find the sentinel, without loading weights.

    Returns:
        GateSetup: What the engine needs.

    Raises:
        ValueError: If the marker is unknown or has no room beside the thought delimiters, an EOS is outside the
            vocabulary, or no sentinel is free.
    """
    vocab_size, declared = _vocabulary(model, args)
    delimiters = thought_delimiters(tokenizer, args)
    shown = () if delimiters is None else delimiters.parts
    eos_ids = _eos_ids(tokenizer, [*declared, *_extra_eos_ids(tokenizer, args)], vocab_size)
    vocabulary = vocabulary_bytes(tokenizer, vocab_size, shown)
    automaton = compile_automaton(get_marker(args.marker, delimiters), vocabulary)
    if args.sentinel_token_id is None:
        sentinel = find_sentinel(tokenizer, vocab_size, eos_ids)
    elif not 0 <= args.sentinel_token_id < vocab_size or args.sentinel_token_id in eos_ids:
        raise ValueError(
            f"sentinel_token_id must be a vocabulary id in [0, {vocab_size}) that is no EOS {list(eos_ids)}, got "
            f"{args.sentinel_token_id}. Leave it at None to have one found."
        )
    else:
        sentinel = args.sentinel_token_id
    return GateSetup(args.marker, automaton, sentinel, eos_ids, delimiters)


def _vocabulary(model: str | torch.nn.Module, args: DUETGRPOConfig) -> tuple[int, list[int]]:
    """Size of the model's vocabulary and the EOS ids it declares, without loading weights."""
    if not isinstance(model, str):
        config, declared = model.config, model.generation_config.eos_token_id
    else:
        source = _source(args)
        config = AutoConfig.from_pretrained(model, **source)
        try:
            declared = GenerationConfig.from_pretrained(model, **source).eos_token_id
        except OSError:  # transformers then makes one from the model's configuration
            declared = config.eos_token_id
    text_config = config.get_text_config()
    return text_config.vocab_size, [declared] if isinstance(declared, int) else list(declared or [])


def _source(args: DUETGRPOConfig) -> dict[str, Any]:
    """Revision and trust of the model, which GRPOTrainer takes from `model_init_kwargs` first."""
    kwargs = args.model_init_kwargs or {}
    return {
        "revision": kwargs.get("revision"),
        "trust_remote_code": kwargs.get("trust_remote_code", args.trust_remote_code),
    }


def _eos_ids(tokenizer: PreTrainedTokenizerBase, declared: list[int], vocab_size: int) -> tuple[int, ...]:
    if tokenizer.eos_token_id is None:
        raise ValueError("The tokenizer has no eos_token: no rollout could end by itself. Set tokenizer.eos_token.")
    eos_ids = dict.fromkeys([tokenizer.eos_token_id, *declared])
    outside = [eos for eos in eos_ids if not 0 <= eos < vocab_size]
    if outside:
        raise ValueError(
            f"eos_token_id {outside} is outside the vocabulary of {vocab_size}. Set tokenizer.eos_token and the "
            "model's generation_config.eos_token_id to tokens the model can produce."
        )
    return tuple(eos_ids)


def _extra_eos_ids(tokenizer: PreTrainedTokenizerBase, args: DUETGRPOConfig) -> list[int]:
    tokens = args.extra_eos_tokens or []
    ids = [tokenizer.get_vocab().get(token) for token in tokens]
    if None in ids:
        raise ValueError(
            f"extra_eos_tokens names {tokens[ids.index(None)]!r}, which is no single token of the tokenizer "
            f"{tokenizer.name_or_path!r}. Name a token of its vocabulary, or leave it out."
        )
    return ids


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _share_cores() -> None:
    """Let vLLM and training use the same CPU cores: what docs/engines.md#on-a-cpu asks for and nobody has set.

    vLLM binds its threads to cores that training uses as well, and threads that wait for each other crawl.
    """
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if "OMP_NUM_THREADS" not in os.environ:  # read when torch was imported: too late to set
        torch.set_num_threads(1)
        logger.info("vLLM and training share the CPU, one thread each. Set OMP_NUM_THREADS for another number.")


def _check_installed(mode: str) -> None:
    """Refuse `use_vllm=True` where the libraries of the extra `vllm` are missing."""
    wanted = ("vllm", "aiohttp", "requests") if mode == "server" else ("vllm",)
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"use_vllm=True with vllm_mode={mode!r} needs {', '.join(missing)}, which a plain installation does not "
            "have. Install the extra: pip install 'duet-trl[vllm]', on a CPU as docs/operations.md says; or set "
            "use_vllm=False."
        )


def active(jobs: Sequence[Job]) -> bool:
    """Whether any of the rollouts may be stopped."""
    return any(job.gate is not None and (job.gate.trim or job.gate.abort) for job in jobs)


class Engine:
    """The engine TRL generates with, gated on demand.

    Args:
        args (DUETGRPOConfig): Checked configuration.
        setup (GateSetup | None): None: the engine is never gated.
        tokenizer (PreTrainedTokenizerBase): The policy's.
    """

    def __init__(self, args: DUETGRPOConfig, setup: GateSetup | None, tokenizer: PreTrainedTokenizerBase) -> None:
        self.args = args
        self.setup = setup
        self.thoughts = Thoughts(tokenizer, thought_delimiters(tokenizer, args))
        self._server: ServerGeneration | None = None

    @contextmanager
    def construction(self, trainer: "DUETGRPOTrainer") -> Iterator[None]:
        """While active, the vLLM engine or the client of a vLLM server that TRL builds is one for the gate."""
        if not self.args.use_vllm:
            yield
            return
        _check_installed(self.args.vllm_mode)
        from trl.generation import vllm_generation

        if self.args.vllm_mode == "server":
            from .server_generation import client_factory

            name, stand_in = "VLLMClient", client_factory(self.args)
        else:
            name, stand_in = "LLM", self._llm_builder(trainer, vllm_generation.LLM)
        original = vllm_generation.__dict__[name]
        setattr(vllm_generation, name, stand_in)
        try:
            yield
        finally:
            setattr(vllm_generation, name, original)

    def _llm_builder(self, trainer: "DUETGRPOTrainer", original: Callable[..., Any]) -> Callable[..., Any]:
        from ..engines.colocated import llm_factory

        def build(*args: Any, **kwargs: Any) -> Any:
            on_cpu = trainer.accelerator.device.type == "cpu"
            if on_cpu:
                _share_cores()
            if trainer.accelerator.num_processes == 1:
                # accelerate fixes the port on a CPU, so that a second run on the machine could not start its engine.
                os.environ["MASTER_PORT"] = str(_free_port())
            # vLLM's own choice on CPU would sample from a bfloat16 copy of a float32 policy.
            dtype = str(trainer.model.dtype).removeprefix("torch.") if on_cpu else None
            return llm_factory(original, dtype=dtype, enforce_eager=on_cpu or None)(*args, **kwargs)

        return build

    def attach(self, trainer: "DUETGRPOTrainer") -> None:
        """Finish the set-up once TRL has built model and engine.

        Raises:
            ServerError: If a vLLM server does not run this gate.
        """
        self._end_at_extra_tokens(trainer)
        if not self.args.use_vllm:
            return
        if self.args.vllm_mode == "server":
            from .server_generation import ServerGeneration

            self._server = ServerGeneration(trainer, self.setup, trainer.exchange)
            return
        generation, device = trainer.vllm_generation, trainer.accelerator.device
        if self.args.vllm_tensor_parallel_size > 1:
            generation.generate = in_lockstep(generation.generate, generation.tp_group, device)
        if device.type == "cpu":
            from ..engines.colocated import reload_weights_cpu

            # TRL loads tensor by tensor, which vLLM's CPU backend cannot: it multiplies with packed copies.
            generation.sync_weights = lambda: reload_weights_cpu(generation.llm, generation._iter_named_params())

    def _end_at_extra_tokens(self, trainer: "DUETGRPOTrainer") -> None:
        """Make `extra_eos_tokens` ends of a rollout: in TRL's masks, in the engine and in the model that is saved."""
        extra = [x for x in _extra_eos_ids(trainer._tokenizer, self.args) if x not in trainer.eos_token_ids]
        if not extra:
            return
        trainer.eos_token_ids = [*trainer.eos_token_ids, *extra]
        trainer.accelerator.unwrap_model(trainer.model).generation_config.eos_token_id = list(trainer.eos_token_ids)
        if not self.args.use_vllm:
            trainer.generation_config.eos_token_id = trainer.generation_kwargs["eos_token_id"] = trainer.eos_token_ids
        elif self.args.vllm_mode == "colocate":
            kwargs = trainer.vllm_generation.generation_kwargs
            stops = kwargs.get("stop_token_ids") or []
            trainer.vllm_generation.generation_kwargs = kwargs | {"stop_token_ids": [*stops, *extra]}

    def gated(
        self, trainer: "DUETGRPOTrainer", jobs: Sequence[Job], prompt_ids: list[list[int]]
    ) -> AbstractContextManager:
        """While active, generation of these rollouts runs through the gate.

        Args:
            trainer (DUETGRPOTrainer): Owner of model and engine.
            jobs (Sequence[Job]): In the order of the prompts, length R.
            prompt_ids (list[list[int]]): Tokens of these, length R.
        """
        if not active(jobs):
            return nullcontext()
        eos_ids, marker, sentinel = trainer.eos_token_ids, self.setup.marker, self.setup.sentinel
        names = {"fingerprint": self.setup.automaton.fingerprint, "delimiters": self.setup.delimiters}
        parameters = [
            gate_parameters(job.gate, marker, job.keep, sentinel, eos_ids, in_thought=thinks, **names)
            for job, thinks in zip(jobs, self.thoughts.open_after(prompt_ids).tolist(), strict=True)
        ]
        if self._server is not None:
            return self._server.gated(parameters)
        if self.args.use_vllm:
            from ..engines.colocated import gated_requests

            return gated_requests(trainer.vllm_generation.llm, self._of_group(trainer, parameters), eos_ids)
        from ..engines.transformers import gated_generate

        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        return gated_generate(model, parameters, {marker: self.setup.automaton})

    def _of_group(self, trainer: "DUETGRPOTrainer", parameters: list[dict]) -> list[dict]:
        """Under tensor parallelism every rank of a group runs the prompts of all of them."""
        size = self.args.vllm_tensor_parallel_size
        if size == 1:
            return parameters
        gathered: list[list[dict]] = [[] for _ in range(size)]
        torch.distributed.all_gather_object(gathered, parameters, group=trainer.vllm_generation.tp_group)
        return [row for rank in gathered for row in rank]

    @contextmanager
    def sampling(
        self, trainer: "DUETGRPOTrainer", temperature: float | None, top_p: float | None, max_tokens: int | None
    ) -> Iterator[None]:
        """While active, TRL's generation uses other settings; see [`DUETGRPOTrainer.sample`]."""
        temperature = trainer.temperature if temperature is None else temperature
        max_tokens = trainer.max_completion_length if max_tokens is None else max_tokens
        top_p = trainer.top_p if top_p is None else top_p
        if self.args.use_vllm:
            generation = trainer.vllm_generation
            settings = {"temperature": temperature, "top_p": top_p, "max_completion_length": max_tokens}
            saved = {name: generation.__dict__[name] for name in settings}
            generation.__dict__.update(settings)
            try:
                yield
            finally:
                generation.__dict__.update(saved)
            return
        saved_config, saved_kwargs = trainer.generation_config, trainer.generation_kwargs
        changed = {"max_new_tokens": max_tokens, "do_sample": temperature > 0}
        if temperature > 0:
            changed |= {"temperature": temperature, "top_p": top_p}
        trainer.generation_config = copy.deepcopy(saved_config)
        trainer.generation_config.update(**changed)
        trainer.generation_kwargs = saved_kwargs | changed
        try:
            yield
        finally:
            trainer.generation_config, trainer.generation_kwargs = saved_config, saved_kwargs

    def split(
        self, jobs: Sequence[Job], ids: list[list[int]], logprobs: list | None
    ) -> tuple[list, list | None, np.ndarray]:
        """Cut the forced stop off each rollout.

        Args:
            jobs (Sequence[Job]): Gates the rollouts ran through. Without one the sentinel is an id like any other.
            ids (list[list[int]]): Sampled ids.
            logprobs (list | None): Log-prob of each id, or None.

        Returns:
            tuple[list, list | None, np.ndarray]: Policy tokens, their log-probs, and whether the gate stopped each.
        """
        if not active(jobs):
            return ids, logprobs, np.zeros(len(ids), dtype=bool)
        policy, stopped = split_sentinel(ids, self.setup.sentinel)
        if logprobs is not None:
            logprobs = [row[: len(kept)] for row, kept in zip(logprobs, policy, strict=True)]
        return policy, logprobs, stopped
