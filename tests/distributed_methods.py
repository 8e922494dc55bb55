# SPDX-License-Identifier: Apache-2.0
"""One process of a run that trains several methods one after another; started by test_distributed.py."""

import hashlib
import json
import sys
from pathlib import Path

from duet_trl.config import reads
from tests.processes import report
from tests.runs import duet_trainer, logged, prompts
from tests.states import plain


def train(model: str, output_dir: Path, method: str) -> dict:
    """Two steps of a method; what both processes must have alike, and whether it did anything."""
    gate = {"grace_window": 8}
    if method == "paper":
        gate |= {"method_kwargs": {"threshold_interval": 1, "threshold_window": 64}}
    own = {"arrol": {"method_kwargs": {"head_warmup_steps": 1, "detect_at": 12}}}.get(method, {})  # prunes in step 2
    options = {"method": method, "max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    options |= {"max_completion_length": 48} | (gate if "grace_window" in reads(method) else own)
    # Eight of twelve prompts a step: some come again, and methods that draw others find them.
    trainer = duet_trainer(model, output_dir / method, data=prompts(12), **options)
    jobs = []
    judge = trainer.loop.judge

    def recorded(step):
        jobs.append([(job.prompt, len(job.prefix), job.keep) for job in step.jobs])
        judge(step)

    trainer.loop.judge = recorded
    start = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    end = [p.detach() for p in trainer.model.parameters()]
    return {
        "state": plain(trainer.loop.state_dict()),
        "weights": hashlib.sha256(b"".join(p.numpy().tobytes() for p in end)).hexdigest(),
        "moved": max((a - b).abs().max().item() for a, b in zip(start, end, strict=True)),
        "jobs": jobs,
        "trained_tokens": logged(trainer, "duet/trained_tokens"),
        "reused_tokens": sum(logged(trainer, "duet/reused_tokens")),
    }


def main() -> None:
    model, output_dir, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    found = {method: train(model, output_dir, method) for method in given["methods"]}
    report(output_dir, found)


if __name__ == "__main__":
    main()
