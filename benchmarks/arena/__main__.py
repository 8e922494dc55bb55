# SPDX-License-Identifier: Apache-2.0
"""Every method on pre-trained models, tuned, at equal tokens and at equal seconds of GRPO with a stop string.

Each run is a separate process with all cores, and a line of a committed file when it has finished: an arena that is
interrupted resumes, on any machine with the same processor.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from duet_trl.report.environment import hardware

from .entrants import ENTRANTS, REFERENCE
from .mixed import POOL
from .profiles import PROFILES
from .records import COMMITTED, CONFIRM, REPORT, STAGES, Run, read
from .schedule import PLAN, Asked, Plan, frozen, hash_of, hours, ready
from .tasks import TASKS

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "outputs" / "bench" / "arena" / "smoke.jsonl"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the runs that are missing; prints the projected hours first")
    freeze = commands.add_parser("freeze", help="write plan.json from the tuning runs")
    report = commands.add_parser("report", help="tables and figures from records")
    for one in (run, freeze, report):
        one.add_argument("--records", type=Path, help="by default the committed ones; smoke runs have their own")
    for one in (run, freeze):
        one.add_argument("--profile", choices=PROFILES, default="full")
        one.add_argument("--tasks", default="mixed_135m", help=f"separated by commas, of {', '.join(TASKS)}")
        one.add_argument("--entrants", default=",".join(ENTRANTS), help="separated by commas; by default all")
    freeze.add_argument("--like", choices=TASKS, help="take the rates that were tuned on this task, of the same model")
    run.add_argument("--seeds", help="of reported runs, such as 0-4 or 3,5; by default those of the profile")
    run.add_argument("--stages", default=",".join(STAGES), help=f"separated by commas; by default {','.join(STAGES)}")
    run.add_argument("--minutes", type=float, help="start no run after so many")
    run.add_argument(
        "--plan", action="store_true", help="only print what is missing, how long it takes, and what prevents it"
    )
    report.add_argument("--write", action="store_true", help="write tables, values and figures into the documents")
    report.add_argument("--check", action="store_true", help="exit with an error if a document quotes another value")
    args = parser.parse_args()
    args.records = args.records or (SMOKE if getattr(args, "profile", "full") == "smoke" else COMMITTED)
    if args.command != "report":
        known = {"tasks": TASKS, "entrants": ENTRANTS, "stages": STAGES}
        chosen = {name: tuple(getattr(args, name).split(",")) for name in known if hasattr(args, name)}
        for name, own in chosen.items():
            if unknown := [one for one in own if one not in known[name]]:
                parser.error(f"unknown {name}: {', '.join(unknown)}. Choose of {', '.join(known[name])}.")
        like = getattr(args, "like", None)
        if like and any(TASKS[one].model != TASKS[like].model for one in chosen["tasks"]):
            parser.error(f"--tasks {args.tasks} have not all the model of --like {like}: tune them.")
        profile = PROFILES[args.profile]
        args.asked = Asked(profile, **chosen, seeds=_seeds(getattr(args, "seeds", None)) or profile.seeds)
    return args


def _seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    first, _, last = text.partition("-")
    return tuple(range(int(first), int(last) + 1)) if last else tuple(int(seed) for seed in text.split(","))


def main() -> None:
    """Run, freeze or report."""
    args = arguments()
    runs = read(args.records)
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    if args.command == "run":
        from .running import run_all

        count, time = hours(args.asked, runs)
        print(f"{count} runs to make, about {time:.1f} hours; records in {args.records}", flush=True)
        problem = _without_problems(args.asked)
        if args.profile != "full":
            plan = frozen(runs, args.asked)
        elif {REPORT, CONFIRM} & set(args.asked.stages):
            problem = problem or _unfit(plan, args.asked)
        if ready(args.asked, runs, plan):
            problem = problem or _elsewhere(args.asked, runs, args.records)
        if problem:
            sys.exit(problem)
        if args.plan:
            return
        if run_all(args.asked, runs, plan, args.profile, args.records, args.minutes):
            sys.exit(1)
        left, _ = hours(args.asked, runs)
        if left and args.minutes is None:
            sys.exit(
                f"{left} runs were not made. They wait for {REFERENCE} of their stage and seed, or for their tuning: "
                "add --entrants, or ask again."
            )
    elif args.command == "freeze":
        for task, own in frozen(runs, args.asked, args.like).items():
            plan[task] = plan.get(task, {}) | own
            print(f"{task}: {', '.join(own)}")
        PLAN.write_text(json.dumps(plan, indent=1) + "\n")
        print(f"wrote {PLAN}: commit it before `run --stages report`")
    else:
        from .report import report

        if not runs:
            sys.exit(f"no records in {args.records}. Run `python -m benchmarks.arena run` first.")
        problems = report(runs, ROOT, write=args.write)
        if args.check and problems:
            sys.exit("\n".join(problems))


def _elsewhere(asked: Asked, runs: list[Run], records: Path) -> str | None:
    """Why runs of this machine do not fit to those of the records."""
    own = hardware()
    for run in runs:
        if run.task in asked.tasks:
            other = {"bf16": True} | run.environment["hardware"]  # records from before this field had it
            if differs := [what for what in ("processor", "bf16", "cores") if own[what] != other[what]]:
                said = ", ".join(f"{what} {other[what]}, here {own[what]}" for what in differs)
                return (
                    f"{records} has runs of {run.task} on another machine ({said}): seconds could not be compared. "
                    "Give each command another file as --records, with runs of the reference by this machine."
                )
    return None


def _without_problems(asked: Asked) -> str | None:
    """Why a task's problems cannot be made."""
    for task in asked.tasks:
        try:
            TASKS[task].problems(POOL)
        except ValueError as error:
            return f"{task}: {error}"
    return None


def _unfit(plan: Plan, asked: Asked) -> str | None:
    """Why a plan is not fit for the reported runs that are asked for."""
    command = ["git", "status", "--porcelain", "--", str(PLAN)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout.strip():
        return f"{PLAN.name} is not committed. Commit it before the first reported run."
    for task in asked.tasks:
        for name in asked.entrants:
            entry = plan.get(task, {}).get(name)
            if entry is None:
                return f"{PLAN.name} has no {name} on {task}. Tune it and `freeze`, or leave it out of --entrants."
            if hash_of(task, name, entry["rate"], asked.profile) != entry["hash"]:
                return f"{PLAN.name} has other settings of {name} on {task} than the code. `freeze` and commit."
    return None


if __name__ == "__main__":
    main()
