# SPDX-License-Identifier: Apache-2.0
# make demo-tiny                       two CPU cores, no GPU, real vLLM in process; about four minutes
"""Plain GRPO, then DUET at half the token budget, on a task that two CPU cores learn in minutes.

Both start from the same policy and take the same prompts in the same order, in the same number of batches. Each runs
in its own process, because a vLLM engine keeps state of the process it was built in. The table, the figure and
summary.json of the output folder show the result, whatever it is.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tiny_math.cpu import ENVIRONMENT
from tiny_math.scaled import GRACE_WINDOW

from duet_trl.mistakes import mistakes

DUET = {
    "method": "duet",
    "budget_fraction": 0.5,
    "grace_window": GRACE_WINDOW,
    # Zero advantages: no part of the method, plain GRPO could save this time as well.
    "method_kwargs": {"drop_zero_advantage": False},
}


class Arm(NamedTuple):
    """A run: its name in the report and its own settings."""

    name: str
    settings: dict[str, Any]


ARMS = {
    "grpo": Arm("GRPO", {"method": "grpo"}),
    "duet": Arm("DUET, b = 0.5", DUET),
}
SETTINGS = Path(__file__).parent / "configs" / "math_tiny.yaml"
ENGINE_HELP = "what generates rollouts: vLLM in this process, a vLLM server on port 8000, or transformers"
POOL_SIZE = 160  # ten steps an epoch


def main() -> None:
    """Run both arms one after the other and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=28, help="batches of rollouts of each run")
    parser.add_argument("--seed", type=int, default=0, help="order of the prompts")
    parser.add_argument("--output_dir", type=Path, help="default: outputs/demo_tiny, or outputs/demo_<engine>")
    parser.add_argument("--engine", choices=("vllm", "server", "transformers"), default="vllm", help=ENGINE_HELP)
    parser.add_argument("--eval_problems", type=int, default=100, help="held-out problems, four samples each")
    parser.add_argument("--eval_every", type=int, default=7, help="batches between evaluations")
    parser.add_argument("--arm", choices=tuple(ARMS), help="train this run only, in this process (tiny_math/cpu.py)")
    args = parser.parse_args()
    for name in ("steps", "eval_problems"):
        if vars(args)[name] < 1:
            parser.error(f"--{name} must be at least 1, got {vars(args)[name]}")
    if args.output_dir is None:  # a trial of another engine leaves the demo's results alone
        args.output_dir = Path("outputs", "demo_tiny" if args.engine == "vllm" else f"demo_{args.engine}")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if args.arm is None:
        compare(args)
    else:
        train(args)


def compare(args: argparse.Namespace) -> None:
    """Train each arm in its own process, then write and print the report."""
    begin = time.perf_counter()
    for number, (key, arm) in enumerate(ARMS.items(), start=1):
        print(f"\n[{number}/{len(ARMS)}] {arm.name}: {args.steps} batches of rollouts", flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--arm", key]
        if subprocess.run(command, env=ENVIRONMENT | os.environ).returncode != 0:
            sys.exit(f"error: the {arm.name} run failed; its message is above.")
    from tiny_math.demo_report import write_report

    runs = [json.loads((args.output_dir / f"{arm}.json").read_text()) for arm in ARMS]
    print(f"\n{write_report(runs, args.output_dir)}\n\nFigure and summary: {args.output_dir}/")
    print(f"All runs with their evaluations: {(time.perf_counter() - begin) / 60:.1f} minutes")


def train(args: argparse.Namespace) -> None:
    """Train one arm and write its record."""
    arm = ARMS[args.arm]
    with mistakes():
        from tiny_math.demo_report import run_record

        trainer, evaluation = build(args, arm, args.output_dir / args.arm)
    trainer.train()
    asked = {key: value for key, value in vars(args).items() if key != "output_dir"}
    record = run_record(arm.name, trainer.state.log_history, evaluation.evaluations, asked)
    (args.output_dir / f"{args.arm}.json").write_text(json.dumps(record))


def build(args: argparse.Namespace, arm: Arm, folder: Path) -> tuple[Any, Any]:
    """The trainer of an arm, and the evaluation that is one of its callbacks."""
    # Only the training process pays for these imports, and only it has the environment they need.
    from datasets import Dataset
    from tiny_math.policy import CHECKPOINT
    from tiny_math.problems import HELD_OUT, TRAIN
    from tiny_math.reward import is_correct, last_box_reward
    from tiny_math.step_line import print_lines
    from tiny_math.task import sample_problems

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
    from duet_trl.evaluation.callbacks import HeldOutEvaluation

    pool = sample_problems(TRAIN, POOL_SIZE, seed=0)
    held_out = sample_problems(HELD_OUT, args.eval_problems, seed=0)
    settings = yaml.safe_load(SETTINGS.read_text()) | arm.settings
    if args.engine == "server":
        settings["vllm_mode"] = "server"
    config = DUETGRPOConfig(
        output_dir=str(folder),
        max_steps=args.steps,
        seed=args.seed,
        use_vllm=args.engine != "transformers",
        **settings,
    )
    trainer = DUETGRPOTrainer(
        model=str(CHECKPOINT),
        reward_funcs=last_box_reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in pool]),
    )
    evaluation = HeldOutEvaluation(
        trainer,
        [problem.messages for problem in held_out],
        lambda index, ids: is_correct(trainer.processing_class.decode(ids), held_out[index].answer),
        every=args.eval_every,
    )
    trainer.add_callback(evaluation)
    print_lines(trainer)
    return trainer, evaluation


if __name__ == "__main__":
    main()
