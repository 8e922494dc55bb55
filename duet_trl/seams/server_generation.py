# SPDX-License-Identifier: Apache-2.0
"""TRL's server mode with the gate: its client with a token, weights that are proven."""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import requests
import torch
from safetensors import SafetensorError
from trl import GRPOTrainer
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from ..config import DUETGRPOConfig
from ..engines.engine import ServerError, ServerLost, Turn
from ..engines.guard import TOKEN_VARIABLE, WEIGHTS_VARIABLE
from ..engines.server import GateServer
from ..engines.server_engine import ServerEngine
from ..engines.stream import StreamServer
from ..engines.stream_engine import StreamEngine
from ..exchange import Exchange
from ..gate.streaming import GateSetup
from .backend import Backend, replaced, reshard, turn_arguments, vllm_sampling
from .weight_folder import WeightFolder


class DUETClient(VLLMClient):
    """TRL's client with a token, and weight sync through a folder where NCCL cannot be had."""

    def __init__(self, args: DUETGRPOConfig, token: str | None, **kwargs: Any) -> None:
        self._args = args
        self._token = token
        self.folder: WeightFolder | None = None
        self.weights = ""
        self.tied = False  # whether the policy's output layer is its embedding
        super().__init__(**kwargs)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """Wait for the server, with the token; `VLLMClient` calls it before anything else."""
        self.gate = (StreamServer if self._args.engine == "openai" else GateServer)(self.base_url, self._token)
        self.session.headers.update(self.gate.headers)
        self.session.trust_env = False  # a proxy must not see the token, nor .netrc replace it
        self.gate.wait(total_timeout)

    def get_server_info(self) -> dict[str, Any]:
        """The resolved configuration of the server; TRL reads `model_config.logprobs_mode`."""
        return self.gate.configuration()

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Prepare weight sync; a device without NCCL needs the folder."""
        self._device = device
        method = self._args.server_weight_sync or ("nccl" if torch.device(device).type == "cuda" else "disk")
        if method == "nccl":
            super().init_communicator(device)
            return
        folder = self._args.server_weights_dir or os.environ.get(WEIGHTS_VARIABLE)
        if not folder:
            raise ValueError(
                "server_weight_sync='disk' sends weights through a folder, and none is named. Set server_weights_dir, "
                f"or {WEIGHTS_VARIABLE} in the environment of trainer and server, to a folder that both see."
            )
        if self.folder is None:
            self.folder = WeightFolder(Path(folder))
            weakref.finalize(self, self.folder.keep_only, None)

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Send all weights."""
        try:
            if self.folder is not None:
                self._send_through_folder(self.folder, named_params)
            else:
                self.gate.wait(0.0)
                with _lost_connections():
                    super().update_named_params(metadata, named_params)
        finally:
            # The other processes take part in the gathering of every parameter, and merged adapters are taken apart
            # after the last one.
            for _ in named_params:
                pass

    def _send_through_folder(self, folder: WeightFolder, named_params: Iterator[tuple[str, torch.Tensor]]) -> None:
        try:
            version = folder.write(named_params)
        except (OSError, SafetensorError) as error:
            raise ServerError(
                f"the weights for the vLLM server could not be written to {folder.folder}: {error}. It must hold two "
                "copies of the model."
            ) from error
        self.gate.reload_weights(str(version))
        self.weights = str(version)
        folder.keep_only(version)

    def reset_prefix_cache(self) -> None:
        """Forget what was cached under the old weights."""
        self.gate.reset_prefix_cache()

    def check_reload(self) -> None:
        """Raise ServerError for a server without the gate that would keep a part of the old weights."""
        if not self.tied or self.folder is None:
            return
        served = self.gate.configuration()
        if served.get("device_config", {}).get("device") == "cpu" and "duet_trl.engines." not in str(served):
            raise ServerError(
                "vLLM on a CPU keeps a packed copy of the output layer, which is the embedding in this model, and "
                "leaves it as it was when weights are loaded. Start the server with --worker-extension-cls "
                "duet_trl.engines.cpu_worker.CPUWorker."
            )

    def reconnect(self) -> None:
        """Prepare weight sync with a server that was restarted."""
        self.weights = ""
        if self.folder is None:
            with _lost_connections():
                self.close_communicator()
                self.init_communicator(self._device)


@contextmanager
def _lost_connections() -> Iterator[None]:
    """TRL's own requests fail by the errors of another library."""
    try:
        yield
    except requests.RequestException as error:
        raise ServerLost(f"the vLLM server does not answer: {error}") from error


class ServerBackend(Backend):
    """`use_vllm=True, vllm_mode="server"`."""

    def construction(self, trainer: GRPOTrainer) -> AbstractContextManager:
        """While active, the client of a vLLM server that TRL builds is one for the gate."""
        return replaced("VLLMClient", partial(DUETClient, self.args, os.environ.get(TOKEN_VARIABLE)))

    def _engine(self, trainer: GRPOTrainer, turn: Turn, setup: GateSetup | None, exchange: Exchange) -> ServerEngine:
        generation, accelerator = trainer.vllm_generation, trainer.accelerator
        build = ServerEngine
        if self.args.engine == "openai":
            text = "So 6 x 7 = \\boxed{42}, \u00e9 \u6570"
            ids = trainer._tokenizer(text, add_special_tokens=False)["input_ids"]
            build = partial(StreamEngine, text=(text, ids), report=trainer.report)
            if accelerator.is_main_process:
                generation.vllm_client.tied = trainer.model.config.get_text_config().tie_word_embeddings
        engine = build(
            *turn_arguments(trainer, turn, setup, partial(vllm_sampling, generation)),
            connection=generation.vllm_client if accelerator.is_main_process else None,
            sampling=partial(_sampling, generation),
            send=partial(_send, trainer.model, generation.sync_weights),
            exchange=exchange,
            process=accelerator.process_index,
            timeout=self.args.vllm_server_timeout,
        )
        generation.generate, generation.sync_weights = engine.complete, engine.sync_weights
        return engine


def _send(model: torch.nn.Module, sync_weights: Callable[[], None]) -> None:
    reshard(model)  # TRL reads what is whole as a shard
    sync_weights()


def _sampling(generation: VLLMGeneration) -> dict[str, Any]:
    """Body of a completion request."""
    sampling = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "min_p": generation.min_p or 0.0,
        "repetition_penalty": generation.repetition_penalty,
        "max_tokens": generation.max_completion_length,
        **generation.generation_kwargs,
    }
    if generation.structured_outputs_regex is not None:
        sampling["structured_outputs"] = {"regex": generation.structured_outputs_regex}
    return sampling
