# SPDX-License-Identifier: Apache-2.0
"""The machine and the versions that are reported with every figure."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

CPUINFO = Path("/proc/cpuinfo")


def hardware() -> dict[str, Any]:
    """Processor, whether it multiplies bfloat16, cores this process may use, threads, GiB of memory, graphics card."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    models = _told(CPUINFO, "model name")
    return {
        "machine": platform.machine(),
        "processor": models[0] if models else platform.processor(),
        "bf16": multiplies_bf16(False),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "memory_gib": round(memory / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def multiplies_bf16(gpu: bool, cpuinfo: Path = CPUINFO) -> bool:
    """Whether a device has instructions for bfloat16, or is a processor that tells nothing; else float32 is faster.

    Args:
        gpu (bool): Whether the graphics card is meant, which must be there; else the processor.
        cpuinfo (Path): What Linux tells of processors.
    """
    if gpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    features = {one for told in _told(cpuinfo, "flags", "Features") for one in told.split()}
    return not features or not features.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def _told(cpuinfo: Path, *fields: str) -> list[str]:
    """Values of fields, processor by processor."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(fields)]


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and of those of these distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
