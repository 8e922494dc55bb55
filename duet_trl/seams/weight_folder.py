# SPDX-License-Identifier: Apache-2.0
"""Weights on their way to a server that shares a folder with the trainer instead of a NCCL fabric."""

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

_SHARD_BYTES = 2**30


class WeightFolder:
    """One sub-folder of safetensors per version, each under its own name.

    A server that has loaded a version proves it by that name, so a name is never reused, not even after a restart of
    the trainer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = secrets.token_hex(4)
        self._count = 0

    def write(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> Path:
        """Write all weights, at most a shard of them in memory at a time."""
        self._count += 1
        version = self.folder / f"{self._run}-{self._count:06d}"
        partial = self.folder / f".{version.name}"
        partial.mkdir()
        shard: dict[str, torch.Tensor] = {}
        size = num_shards = 0
        for name, weight in named_weights:
            shard[name] = weight.detach().to("cpu", copy=True).contiguous()
            size += shard[name].nbytes
            if size >= _SHARD_BYTES:
                save_file(shard, str(partial / f"model-{num_shards:05d}.safetensors"))
                shard, size, num_shards = {}, 0, num_shards + 1
        if shard:
            save_file(shard, str(partial / f"model-{num_shards:05d}.safetensors"))
        partial.rename(version)  # a reader never sees half a version
        return version

    def keep_only(self, version: Path | None) -> None:
        """Delete the other versions of this run; None deletes them all."""
        for folder in self.folder.glob(f"*{self._run}-*"):
            if folder != version:
                shutil.rmtree(folder)
