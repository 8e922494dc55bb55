# SPDX-License-Identifier: Apache-2.0
# python -m benchmarks.arena run                    everything: tuning, then five seeds (a day; it resumes)
# python -m benchmarks.arena run --tasks sums --entrants grpo_8,duet --seeds 5-14
# python -m benchmarks.arena run --profile fast     a quarter of an hour: shows that it works, decides nothing
# python -m benchmarks.arena report --check         recomputes every figure that the documents quote, and the targets
"""Every method on four tasks, tuned, graded by the last answer without a gate, at equal tokens and at equal seconds.

Each run is a process of its own, two side by side on two cores, and a line of a file when it has finished: an
interrupted arena resumes. `report` reads the committed records, or those of --records.
"""

import argparse
import sys
from pathlib import Path

from .entrants import ENTRANTS
from .profiles import PROFILES
from .records import COMMITTED, FOLDER, STAGES, pack, read
from .schedule import Plan, hours
from .tasks import TASKS


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the runs that are missing; prints the projected hours first")
    run.add_argument("--profile", choices=PROFILES, default="full")
    run.add_argument("--tasks", help="separated by commas; by default those of the profile")
    run.add_argument("--entrants", help="separated by commas; by default those of the profile, without the controls")
    run.add_argument("--seeds", help="of reported runs, such as 0-4 or 3,5; by default those of the profile")
    run.add_argument("--stages", help=f"separated by commas; by default {','.join(STAGES)}")
    run.add_argument("--jobs", type=int, default=2, help="runs side by side")
    run.add_argument("--minutes", type=float, help="start no run after so many")
    run.add_argument("--plan", action="store_true", help="only print what is missing and how long it takes")
    report = commands.add_parser("report", help="tables and figures from records")
    report.add_argument("--records", type=Path, default=COMMITTED)
    report.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    report.add_argument("--write", action="store_true", help="write tables and values into the documents")
    report.add_argument(
        "--check",
        action="store_true",
        help="exit with an error if a document quotes another value, or a target is missed",
    )
    packed = commands.add_parser("pack", help="compress records, to be committed")
    packed.add_argument("--profile", choices=PROFILES, default="full")
    args = parser.parse_args()
    if args.command == "run":
        profile = PROFILES[args.profile]
        names = {
            "tasks": (args.tasks, profile.tasks, TASKS),
            "entrants": (args.entrants, profile.entrants, [name for name, one in ENTRANTS.items() if not one.retired]),
            "stages": (args.stages, STAGES, STAGES),
        }
        chosen = {}
        for name, (text, default, known) in names.items():
            chosen[name] = tuple(text.split(",")) if text else default
            unknown = [one for one in chosen[name] if one not in known]
            if unknown:
                parser.error(f"unknown {name}: {', '.join(unknown)}. Choose of {', '.join(known)}.")
        args.asked = Plan(profile, **chosen, seeds=_seeds(args.seeds) or profile.seeds)
    return args


def _seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    first, _, last = text.partition("-")
    return tuple(range(int(first), int(last) + 1)) if last else tuple(int(seed) for seed in text.split(","))


def main() -> None:
    """Run, report or pack."""
    args = arguments()
    if args.command == "run":
        from .running import run_all

        path = FOLDER / f"{args.profile}.jsonl"
        runs = read(path)
        count, time = hours(args.asked, runs, args.jobs)
        print(
            f"{count} runs to make, about {time:.1f} hours with {args.jobs} side by side; records in {path}",
            flush=True,
        )
        if not args.plan and run_all(args.asked, runs, args.profile, path, args.jobs, args.minutes):
            sys.exit(1)
        return
    if args.command == "pack":
        found = read(FOLDER / f"{args.profile}.jsonl")
        path = pack(found)
        print(f"{path}: {len(found)} runs, {path.stat().st_size / 2**20:.2f} MiB")
        return
    from .report import check_documents, write_documents, write_report
    from .report_tables import findings_of
    from .targets import missed

    runs = read(args.records)
    if not runs:
        sys.exit(f"no records in {args.records}. Run `python -m benchmarks.arena run` first.")
    root = Path(__file__).parents[2]
    findings = findings_of(runs)
    write_report(findings, args.markdown)
    if args.write:
        print("\n".join(f"wrote {name}" for name in write_documents(findings, root)))
    if args.check:
        problems = check_documents(findings, root) + missed(findings.verdicts)
        if problems:
            sys.exit("\n".join(problems))
        print("every quoted value is that of the records, and every target is met")


if __name__ == "__main__":
    main()
