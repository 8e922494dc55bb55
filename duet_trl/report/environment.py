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
    """Processor, cores this process may use, OpenMP threads, memory in GiB and graphics card."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": platform.machine(),
        "processor": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "memory_gib": round(memory / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def multiplies_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor has instructions for bfloat16, or tells of none at all; in software float32 is faster.

    Args:
        cpuinfo (Path): What Linux tells of it.
    """
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = {one for line in lines if line.startswith(("flags", "Features")) for one in line.split()}
    return not features or not features.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and of those of these distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
