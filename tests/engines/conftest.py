# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.engines.tiny_gate import TinyGate


@pytest.fixture(scope="session")
def tiny_gate(tiny_path: Path) -> TinyGate:
    return TinyGate(tiny_path)
