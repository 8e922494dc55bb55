# SPDX-License-Identifier: Apache-2.0
"""One of two processes that measure together; started by test_measure_collective.py."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist

from duet_trl.evaluation.callbacks import SuiteEvaluation
from duet_trl.evaluation.measure import Settings, measure, on_first
from duet_trl.evaluation.suites import load_suite
from tests.evaluation.policy import EOS_ID, TOKENIZER, ids


class Trainer:
    """Solves every problem; saves what it is told to save on process 0."""

    processing_class = TOKENIZER
    eos_token_ids = (EOS_ID,)

    def sample(self, prompts, num_samples, *, temperature=None, top_p=None, max_tokens=None):
        return [[ids(r"\boxed{42}")] * num_samples for _ in prompts]

    def log(self, logs):
        self.logged = logs

    def save_model(self, output_dir, _internal_call):
        dist.barrier()  # as a gathering of shards: it hangs unless every process calls it
        Path(output_dir).mkdir(parents=True, exist_ok=True)


def main() -> None:
    data, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    suites = {"math500": load_suite("math500", data)}

    def grader(completions, **columns):
        """Verdicts that depend on the process, as those that depend on time do."""
        return [float(rank == 0 and index % 2 == 0) for index in range(len(completions))]

    report = {"told": on_first(lambda: f"from {rank}"), "errors": []}
    settings = Settings(num_samples=4, max_tokens=9)
    found = measure(Trainer(), suites, {"math500": grader}, TOKENIZER, (EOS_ID,), settings)["math500"]
    report["correct"] = found.graded["sampled"].correct.tolist()

    def fails():
        raise OSError(f"no space on {rank}")

    try:
        on_first(fails)
    except (OSError, RuntimeError) as error:
        report["errors"].append(f"{type(error).__name__}: {error}")

    evaluation = SuiteEvaluation(
        Trainer(), suites, folder / f"run{rank}", settings=settings, graders={"math500": grader}
    )
    state = SimpleNamespace(global_step=7, max_steps=7)
    evaluation.on_step_end(None, state, SimpleNamespace(should_log=False))
    evaluation.on_train_end(None, state, None)
    report["metrics"] = evaluation.trainer.logged["held_out/average"]
    report["files"] = sorted(str(path.relative_to(folder)) for path in (folder / f"run{rank}").rglob("*"))
    (folder / f"rank{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    os._exit(0)  # gloo's thread may need the interpreter's lock that its end is waited for with


if __name__ == "__main__":
    main()
