# SPDX-License-Identifier: Apache-2.0
"""TRL's server mode with the gate: a request per rollout, weights that are proven, a server that may be restarted."""

import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
import torch
from safetensors import SafetensorError
from trl.generation.vllm_client import VLLMClient

from ..config import DUETGRPOConfig
from ..engines.errors import ServerError, ServerLost
from ..engines.guard import TOKEN_VARIABLE, WEIGHTS_VARIABLE
from ..engines.server import Completion, GateServer
from .exchange import Exchange
from .weight_folder import WeightFolder

if TYPE_CHECKING:
    from ..trainer import DUETGRPOTrainer
    from .engine import GateSetup

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
"""How often a batch is generated, or weights are sent, before a server that keeps dying ends the run."""


def client_factory(args: DUETGRPOConfig) -> Callable[..., "DUETClient"]:
    """What stands in the place of TRL's `VLLMClient` while the trainer is built.

    Args:
        args (DUETGRPOConfig): Checked configuration.

    Raises:
        ValueError: When called, if weights go through a folder and none is named.
    """

    def build(**kwargs: Any) -> DUETClient:
        return DUETClient(args, os.environ.get(TOKEN_VARIABLE), **kwargs)

    return build


class DUETClient(VLLMClient):
    """TRL's client behind a token, with weight sync through a folder where NCCL cannot be had.

    Args:
        args (DUETGRPOConfig): Checked configuration.
        token (str | None): What the server's `TokenGuard` asks for.
        **kwargs: As for `VLLMClient`.
    """

    def __init__(self, args: DUETGRPOConfig, token: str | None, **kwargs: Any) -> None:
        self._args = args
        self._token = token
        self.folder: WeightFolder | None = None
        self.weights = ""
        super().__init__(**kwargs)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """Wait for the server, with the token; `VLLMClient` calls it before anything else."""
        self.gate = GateServer(self.base_url, self._token)
        self.session.headers.update(self.gate.headers)
        self.session.trust_env = False  # a proxy must not see the token, nor .netrc replace it
        self.gate.wait(total_timeout)

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Prepare weight sync; a device without NCCL needs the folder."""
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
        """Send all weights.

        Raises:
            ServerLost: If the server is not there any more.
            ServerError: If it refuses or fails to load them, or they cannot be written.
        """
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

    def reconnect(self, device: torch.device) -> None:
        """Prepare weight sync with a server that was restarted."""
        self.weights = ""
        if self.folder is None:
            with _lost_connections():
                self.close_communicator()
                self.init_communicator(device)


@contextmanager
def _lost_connections() -> Iterator[None]:
    """TRL's own requests fail by the errors of another library."""
    try:
        yield
    except requests.RequestException as error:
        raise ServerLost(f"the vLLM server does not answer: {error}") from error


class ServerGeneration:
    """What stands in the place of `VLLMGeneration.generate` and `.sync_weights` of a trainer in server mode.

    Args:
        trainer (DUETGRPOTrainer): Built, with its connection to the server.
        setup (GateSetup | None): Gate of the run, which the server is probed for; None: no gate.
        exchange (Exchange): Collectives.

    Raises:
        ServerError: On every process, if the server does not run this gate.
    """

    def __init__(self, trainer: "DUETGRPOTrainer", setup: "GateSetup | None", exchange: Exchange) -> None:
        self._generation = trainer.vllm_generation
        self._accelerator = trainer.accelerator
        self._timeout = trainer.args.vllm_server_timeout
        self._eos_ids = trainer.eos_token_ids
        self._setup = setup
        self._exchange = exchange
        self._sync = self._generation.sync_weights
        self._parameters: list[dict | None] | None = None
        self._together(self._probe)
        self._generation.generate, self._generation.sync_weights = self.generate, self.sync_weights

    @contextmanager
    def gated(self, parameters: list[dict]) -> Iterator[None]:
        """While active, each local prompt runs under its own `gate_parameters`, given in the prompts' order."""
        self._parameters = parameters
        try:
            yield
        finally:
            self._parameters = None

    def sync_weights(self) -> None:
        """Send the policy's weights, to a restarted server again.

        Raises:
            ServerError: On every process, if the server cannot take them or stays away.
        """
        for _ in range(_ATTEMPTS):
            lost = self._sync_once()
            if lost is None:
                return
            self._recover(lost)
        raise ServerError(f"the vLLM server was lost {_ATTEMPTS} times while weights were sent to it; last: {lost}")

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[list, list, list, None]:
        """One completion of each local prompt, inside `gated` under its gate.

        If the server is lost on the way, nothing of the batch is kept: what has finished by then are the short
        rollouts. The batch is generated again once the server is back and has the weights again.

        Args:
            prompts (list[list[int]]): Local token ids, any number of them.
            images (Any): None.
            num_generations (int): Not used: a prompt comes as often as it is to be completed.
            profiler (Any): Context in which the main process waits.

        Returns:
            tuple: Prompt ids, completion ids, log-probs with one entry per token as `VLLMGeneration` has them, None.

        Raises:
            ServerError: On every process, if the server refuses the batch or stays away.
        """
        gates = self._parameters if self._parameters is not None else [None] * len(prompts)
        sizes = self._exchange.objects([len(prompts)])
        everything = self._exchange.objects(list(zip(prompts, gates, strict=True)))
        with profiler or nullcontext():
            found = self._complete_together(everything)
        first = sum(sizes[: self._accelerator.process_index])
        local = found[first : first + len(prompts)]
        logprobs = [[[value] for value in completion.logprobs] for completion in local]
        return prompts, [completion.token_ids for completion in local], logprobs, None

    def _complete_together(self, everything: list[tuple[list[int], dict | None]]) -> list[Completion]:
        for _ in range(_ATTEMPTS):
            found = self._on_main(lambda: self._complete(everything))
            if not isinstance(found, ServerError):
                return found
            if not isinstance(found, ServerLost):
                raise found
            self._recover(found)
            self.sync_weights()
        raise ServerError(f"the vLLM server was lost {_ATTEMPTS} times in one batch; last: {found}")

    def _complete(self, everything: list[tuple[list[int], dict | None]]) -> list[Completion]:
        generation = self._generation
        client = generation.vllm_client
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
        gates = [gate and {**gate, "duet_weights": client.weights} for _, gate in everything]
        found = client.gate.complete([ids for ids, _ in everything], sampling, gates, self._eos_ids)
        refused = [g for g, row in zip(gates, found, strict=True) if g and row.token_ids == [g["duet_sentinel"]]]
        if refused or None in gates:  # requests without a gate name no weights: whoever has them now had them then
            self._probe()
        return found

    def _probe(self) -> None:
        client, setup = self._generation.vllm_client, self._setup
        if setup is not None:
            client.gate.probe(
                setup.marker,
                setup.automaton.fingerprint,
                setup.sentinel,
                self._eos_ids,
                weights=client.weights,
                delimiters=setup.delimiters,
            )

    def _sync_once(self) -> ServerLost | None:
        lost = None
        try:
            self._sync()
        except ServerError as error:  # on the main process only: the others have nothing to do with the server
            lost = error
        lost = self._exchange.first(lost)
        if lost is not None and not isinstance(lost, ServerLost):
            raise lost
        return lost

    def _recover(self, lost: ServerLost) -> None:
        """Wait for the server to come back with its gate."""
        logger.warning("The vLLM server was lost: %s Waiting up to %g s for it to come back.", lost, self._timeout)

        def recover() -> None:
            client = self._generation.vllm_client
            client.gate.wait(self._timeout)
            client.reconnect(self._accelerator.device)
            self._probe()

        self._together(recover)

    def _together(self, work: Callable[[], None]) -> None:
        """Let the main process do something; if it fails, every process does."""
        failure = self._on_main(work)
        if isinstance(failure, ServerError):
            raise failure

    def _on_main(self, work: Callable[[], Any]) -> Any:
        """Result of some work on the main process, or the `ServerError` that it ended in, known to every process."""
        result = None
        if self._accelerator.is_main_process:
            try:
                result = work()
            except ServerError as error:
                result = error
        return self._exchange.first(result)
