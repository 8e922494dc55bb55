# SPDX-License-Identifier: Apache-2.0
"""Settings that must hold before an engine is imported, and the tiny policy that most tests share."""

import os

# vLLM reads these when it is imported: one thread, one process, a small cache. Nothing here may use the network.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}.items():
    os.environ.setdefault(_name, _value)

import importlib.util  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# A busy machine is no failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

if TYPE_CHECKING:
    from duet_trl.seams.weight_folder import WeightFolder
    from tests.server_process import ServerProcess


# Begun last, one of them would leave the other worker idle for minutes.
LONGEST_FIRST = (
    "test_distributed",
    "test_notebooks",
    "test_vllm_parallel",
    "test_trainer_vllm",
    "test_trainer_server_lost",
    "test_arena_run",
    "test_trainer_pretrained",
    "test_chaos",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first; tests that start vLLM are skipped, saying so, where it is not installed."""
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    if importlib.util.find_spec("vllm") is not None:
        return
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.skip(reason="vllm is not installed"))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny policy of `tests/tiny.py` and its tokenizer, with tied embeddings as Qwen3's small models."""
    from tests.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def moe_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny mixture of experts with a coefficient for the auxiliary loss of its router."""
    from tests.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("moe"), experts=True)


@pytest.fixture(scope="session")
def server(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["ServerProcess"]:
    """The one guarded vLLM server of the run. Whoever changes its weights takes `server_weights`."""
    from tests.server_process import GATE, GUARD, SMALL, ServerProcess

    with ServerProcess(tiny_path, tmp_path_factory.mktemp("server"), *GATE, *GUARD, *SMALL) as process:
        yield process


@pytest.fixture
def server_weights(server: "ServerProcess", tiny_path: Path) -> Iterator["WeightFolder"]:
    """A folder the server may read weights from; afterwards the server has those of `tiny_path` again."""
    from safetensors.torch import load_file

    from duet_trl.seams.weight_folder import WeightFolder

    folder = WeightFolder(server.weights)
    yield folder
    server.client.reload_weights(str(folder.write(load_file(tiny_path / "model.safetensors").items())))


@pytest.fixture
def code_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers keeps code that comes with models in a folder of the test, and forgets it afterwards."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        del sys.modules[name]
