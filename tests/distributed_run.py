# SPDX-License-Identifier: Apache-2.0
"""One process of a distributed run; started by test_distributed.py."""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import report
from tests.runs import count_fours, duet_trainer, prompts
from tests.states import plain


def fails_in_step(step: int) -> Callable:
    """A reward function that process 1 alone cannot compute from this step on."""
    calls = 0

    def score(completions: list, **kwargs: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls >= step and os.environ.get("RANK") == "1":
            raise OSError("the verifier of process 1 is gone")
        return count_fours(completions)

    score.__name__ = count_fours.__name__  # as the run that resumes has it
    return score


def main() -> None:
    model, output_dir, overrides = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    fails, resumes = overrides.pop("fails_in_step", None), overrides.pop("resumes", None)
    rewards = count_fours if fails is None else fails_in_step(fails)
    options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 6, **overrides}
    if "eval_strategy" in options:
        options.update(eval_dataset=prompts(8), num_generations_eval=2, per_device_eval_batch_size=8)
    trainer = duet_trainer(model, output_dir, rewards=rewards, **options)
    plans = []
    judge = trainer.loop.judge

    def recorded(step):
        plans.append(step.num_rollouts.tolist())
        judge(step)

    trainer.loop.judge = recorded
    start = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train(resume_from_checkpoint=resumes)
    end = [p.detach() for p in trainer.model.parameters()]
    found = {
        "state": plain(trainer.loop.state_dict()),
        "weights": hashlib.sha256(b"".join(p.numpy().tobytes() for p in end)).hexdigest(),
        "moved": max((a - b).abs().max().item() for a, b in zip(start, end, strict=True)),
        "plans": plans,
        "samples": trainer.sample(["Say 1 ", "Say 2 ", "Say 3 "], 1, max_tokens=9),
    }
    report(output_dir, found)


if __name__ == "__main__":
    main()
