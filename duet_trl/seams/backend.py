# SPDX-License-Identifier: Apache-2.0
"""Which engine generates, and how TRL's generation becomes it: the one place that reads `use_vllm` and `vllm_mode`."""

import copy
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from trl import GRPOTrainer

from ..config import DUETGRPOConfig
from ..engines.engine import Engine, Policy, Sampling, Turn
from ..engines.transformers import TransformersEngine
from ..exchange import Exchange
from ..gate.streaming import GateSetup
from .arguments import check_built
from .gate_setup import extra_eos_ids, warn_of_turns
from .train_rows import standing_in

logger = logging.getLogger(__name__)

_PORTS = {"29500"}
"""Values of MASTER_PORT that nobody has chosen: that of accelerate, and those of earlier trainers of the process."""


class Backend:
    """`use_vllm=False`, and what the others inherit."""

    def __init__(self, args: DUETGRPOConfig) -> None:
        self.args = args

    def construction(self, trainer: GRPOTrainer) -> AbstractContextManager:
        """While active, TRL builds what the engine will need."""
        return nullcontext()

    def attach(self, trainer: GRPOTrainer, turn: Turn, setup: GateSetup | None, exchange: Exchange) -> Engine:
        """The engine, once TRL has built model and generation."""
        self._extra = _end_at_extra_tokens(trainer, self.args)
        warn_of_turns(trainer)
        return self._engine(trainer, turn, setup, exchange)

    def _engine(self, trainer: GRPOTrainer, turn: Turn, setup: GateSetup | None, exchange: Exchange) -> Engine:
        if self._extra:
            trainer.generation_config.eos_token_id = trainer.generation_kwargs["eos_token_id"] = trainer.eos_token_ids
        return TransformersEngine(
            *turn_arguments(trainer, turn, setup, partial(_model_sampling, trainer)),
            model=trainer.unwrapped_model,
        )


class OwnBackend(Backend):
    """An engine that the user of the trainer has written."""

    def __init__(self, args: DUETGRPOConfig, build: Callable[[Policy], Engine]) -> None:
        super().__init__(args)
        self.build = build

    def _engine(self, trainer: GRPOTrainer, turn: Turn, setup: GateSetup | None, exchange: Exchange) -> Engine:
        super()._engine(trainer, turn, setup, exchange)  # for evaluation
        sampling = Sampling(trainer.temperature, trainer.top_p, trainer.max_completion_length)
        policy = Policy(setup, tuple(trainer.eos_token_ids), sampling, partial(_named_weights, trainer))
        engine = self.build(policy)
        check_built(engine, type(engine).__name__)
        return engine


class ColocatedBackend(Backend):
    """`use_vllm=True, vllm_mode="colocate"`."""

    def construction(self, trainer: GRPOTrainer) -> AbstractContextManager:
        """While active, the vLLM engine that TRL builds is one with the gate."""
        from trl.generation import vllm_generation

        from ..engines.colocated import PROCESSOR

        original = vllm_generation.LLM
        given = os.environ.get("MASTER_PORT", "29500") not in _PORTS  # by the user; TRL sets it next

        def build(*args: Any, **kwargs: Any) -> Any:
            on_cpu = trainer.accelerator.device.type == "cpu"
            if on_cpu:
                _share_cores()
            if trainer.accelerator.num_processes == 1 and not given:
                # accelerate fixes the port on a CPU, so that a second run on the machine could not start its engine.
                os.environ["MASTER_PORT"] = str(_free_port())
                _PORTS.add(os.environ["MASTER_PORT"])
            options: dict[str, Any] = {"logits_processors": [PROCESSOR]}
            if on_cpu:
                # vLLM would compile longer than it gains, and choose its own precision. The policy is what the
                # trainer multiplies: where only one side rounds to bfloat16, they drift apart as weights move.
                dtype = torch.bfloat16 if trainer.args.bf16 else trainer.model.dtype
                options |= {"dtype": str(dtype).removeprefix("torch."), "enforce_eager": True}
                # Rollouts share the full blocks of their prompt. The default there, 128 tokens, leaves nothing of a
                # short one to share; this is the smallest that vLLM's CPU backend has.
                options |= {"block_size": 32}
            return original(*args, **{**options, **kwargs})

        return replaced("LLM", build)

    def _engine(self, trainer: GRPOTrainer, turn: Turn, setup: GateSetup | None, exchange: Exchange) -> Engine:
        from ..engines.colocated import ColocatedEngine, reload_weights_cpu

        generation, device = trainer.vllm_generation, trainer.accelerator.device
        if self._extra:
            stops = generation.generation_kwargs.get("stop_token_ids") or []
            generation.generation_kwargs = generation.generation_kwargs | {"stop_token_ids": [*stops, *self._extra]}
        group = generation.tp_group if self.args.vllm_tensor_parallel_size > 1 else None
        if group is not None:
            generation.generate = in_lockstep(generation.generate, group, device)
        if device.type == "cpu":
            # TRL loads tensor by tensor, which vLLM's CPU backend cannot: it multiplies with packed copies.
            generation.sync_weights = lambda: reload_weights_cpu(generation.llm, generation._iter_named_params())
        return ColocatedEngine(
            *turn_arguments(trainer, turn, setup, partial(vllm_sampling, generation)),
            llm=generation.llm,
            sync=generation.sync_weights,
            group=group,
        )


def choose_backend(args: DUETGRPOConfig, own: Callable[[Policy], Engine] | None = None) -> Backend:
    """The backend that generates the rollouts of a run."""
    if own is not None:
        if args.use_vllm:
            raise ValueError("use_vllm=True builds TRL's engine besides the one in `engine`. Set use_vllm=False.")
        return OwnBackend(args, own)
    if not args.use_vllm:
        return Backend(args)
    server = args.vllm_mode == "server"
    wanted = ("vllm", "aiohttp", "requests") if server else ("vllm",)
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"use_vllm=True with vllm_mode={args.vllm_mode!r} needs {', '.join(missing)}, which a plain installation "
            "does not have. Install the extra: pip install 'duet-trl[vllm]', on a CPU by `make install`; or "
            "set use_vllm=False."
        )
    if not server:
        return ColocatedBackend(args)
    from .server_generation import ServerBackend

    return ServerBackend(args)


def replaced(name: str, stand_in: Callable[..., Any]) -> AbstractContextManager:
    """While active, TRL builds something else in the place of its `LLM` or `VLLMClient`."""
    from trl.generation import vllm_generation

    return standing_in(vllm_generation, **{name: stand_in})


def turn_arguments(
    trainer: GRPOTrainer, turn: Turn, setup: GateSetup | None, sampled: Callable[[Sampling], AbstractContextManager]
) -> tuple:
    """Arguments of a `TurnEngine`."""
    return turn, setup, trainer.eos_token_ids, trainer.max_completion_length, sampled


def vllm_sampling(generation: Any, sampling: Sampling) -> AbstractContextManager:
    """While active, TRL's `VLLMGeneration` samples so."""
    return standing_in(
        generation,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_completion_length=sampling.max_tokens,
    )


def _end_at_extra_tokens(trainer: GRPOTrainer, args: DUETGRPOConfig) -> list[int]:
    """Make `extra_eos_tokens` ends of a rollout, in TRL's masks and in the saved model; returns the new ones."""
    extra = [x for x in extra_eos_ids(trainer._tokenizer, args) if x not in trainer.eos_token_ids]
    if extra:
        trainer.eos_token_ids = [*trainer.eos_token_ids, *extra]
        trainer.accelerator.unwrap_model(trainer.model).generation_config.eos_token_id = list(trainer.eos_token_ids)
    return extra


def _model_sampling(trainer: GRPOTrainer, sampling: Sampling) -> AbstractContextManager:
    """While active, the trainer's `model.generate` samples so."""
    changed = {"max_new_tokens": sampling.max_tokens, "do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        changed |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    config = copy.deepcopy(trainer.generation_config)
    config.update(**changed)
    return standing_in(trainer, generation_config=config, generation_kwargs=trainer.generation_kwargs | changed)


def _named_weights(trainer: GRPOTrainer) -> Iterator[tuple[str, torch.Tensor]]:
    """Full parameters one by one under their checkpoint names: TRL's walk over FSDP, DeepSpeed and adapters."""
    from trl.generation.vllm_generation import VLLMGeneration

    walk = VLLMGeneration.__new__(VLLMGeneration)  # no vLLM: the walk reads these three only
    walk.model, walk.accelerator, walk._dist = trainer.model, trainer.accelerator, trainer._dist
    reshard(trainer.model)  # TRL reads what is whole as a shard
    return walk._iter_named_params()


def reshard(model: torch.nn.Module) -> None:
    """Leave every process its part under FSDP2: a forward pass without a backward one leaves some weights whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _share_cores() -> None:
    """Let vLLM and training use the same CPU cores: the settings of docs/servers.md#on-a-cpu that are not set.

    vLLM binds its threads to cores that training uses as well, and threads that wait for each other crawl.
    """
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if "OMP_NUM_THREADS" not in os.environ:  # read when torch was imported: too late to set
        torch.set_num_threads(1)
        logger.info("vLLM and training share the CPU, one thread each. Set OMP_NUM_THREADS for another number.")


def in_lockstep(
    generate: Callable[..., Any], group: torch.distributed.ProcessGroup, device: torch.device
) -> Callable[..., Any]:
    """`generate`, called by all processes of a group at once, with equal random numbers on each of them."""

    @wraps(generate)
    def together(*args: Any, **kwargs: Any) -> Any:
        seeds = [0] * group.size()
        torch.distributed.all_gather_object(seeds, int(torch.randint(2**31, ())), group=group)
        with _seeded(seeds[0], device):
            return generate(*args, **kwargs)

    return together


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what vLLM draws from: torch in the V1 runner, numpy for the seeds that the V2 runner gives requests."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        state = np.random.get_state()
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)
