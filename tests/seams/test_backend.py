# SPDX-License-Identifier: Apache-2.0
"""What a colocated engine is built with: a port that is free, unless the user has named one."""

import os
from types import SimpleNamespace

import pytest
import torch
from trl.generation import vllm_generation

from duet_trl.seams import backend
from duet_trl.seams.backend import ColocatedBackend

NAMED = "41234"


@pytest.mark.parametrize(("given", "processes"), [(None, 1), ("29500", 1), (NAMED, 1), (NAMED, 2)])
def test_a_port_of_the_users_stays(monkeypatch, given, processes):
    """accelerate writes 29500, and TRL chooses one where there is none: both may be replaced."""
    monkeypatch.setattr(backend, "_PORTS", {"29500"})
    monkeypatch.setenv("MASTER_PORT", given or "29500")
    if given is None:
        monkeypatch.delenv("MASTER_PORT")
    seen = []
    build = lambda **options: seen.append(os.environ["MASTER_PORT"])  # noqa: E731
    monkeypatch.setattr(vllm_generation, "LLM", build, raising=False)
    accelerator = SimpleNamespace(device=torch.device("cuda"), num_processes=processes)
    for _ in range(2):  # a second trainer of the process finds the port of the first
        with ColocatedBackend(None).construction(SimpleNamespace(accelerator=accelerator)):
            os.environ.setdefault("MASTER_PORT", "5")  # TRL's
            vllm_generation.LLM()
    if given == NAMED:
        assert seen == [NAMED, NAMED]
    else:
        assert len({*seen, "29500", "5"}) == 4
