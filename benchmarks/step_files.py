# SPDX-License-Identifier: Apache-2.0
"""Files and functions of the package that one default step enters: what a reader of a step has to open.

    python benchmarks/step_files.py

A run of two steps on transformers' generate, one process, with a policy of random weights; the second step counts.
"""

import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer  # noqa: E402
from tests.runs import count_fours, prompts, settings  # noqa: E402
from tests.tiny import save_tiny  # noqa: E402

PACKAGE = ROOT / "duet_trl"


def entered(folder: Path) -> dict[str, set[str]]:
    """Functions by file that the second step of a run enters."""
    args = DUETGRPOConfig(**settings(folder / "out", max_steps=2))
    trainer = DUETGRPOTrainer(str(save_tiny(folder / "model")), count_fours, args=args, train_dataset=prompts())
    found: dict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and trainer.state.global_step == 1 and path.startswith(str(PACKAGE)):
            found[str(Path(path).relative_to(PACKAGE))].add(frame.f_code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        trainer.train()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def main() -> None:
    """Print them, file by file."""
    with tempfile.TemporaryDirectory() as folder:
        found = entered(Path(folder))
    for path, names in sorted(found.items()):
        print(f"{path:32} {len(names):3}  {', '.join(sorted(names))}")
    print(f"{len(found)} files, {sum(map(len, found.values()))} functions")


if __name__ == "__main__":
    main()
