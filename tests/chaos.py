# SPDX-License-Identifier: Apache-2.0
"""`kill -9` at random moments of training, and what the resumed run makes of it: `python -m tests.chaos --moments 20`.

For each moment a process trains until it kills itself there, and another one resumes from what the first has left.
The resumed run survives if every step of both is the step of a run that nobody killed (plan, gate, coins, rewards,
judgement, log-probs, the method's state), if it ends with the same weights, and if it begins behind the last
checkpoint that was written to its end. The kills are spread over methods, phases and entries of a phase. Every process
is forked from one that has imported everything and computed nothing.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos_world import NAMES, NUM_STEPS, PHASES, run
from tests.tiny import save_tiny

SAVE_STEPS = (1, 2, 3)
"""Steps between two checkpoints, by method in turn. The first epoch ends with step 3."""


@dataclass(frozen=True)
class Moment:
    """Where a run is killed: the number of the entry of a phase, as a share of all entries of an uninterrupted run."""

    method: str
    phase: str
    share: float

    @property
    def saving(self) -> dict[str, Any]:
        """When the run saves."""
        return {"save_strategy": "steps", "save_steps": SAVE_STEPS[NAMES.index(self.method) % len(SAVE_STEPS)]}


@dataclass(frozen=True)
class Outcome:
    """What became of a run: why it is lost, if it is; steps done twice; whether the newest checkpoint was torn."""

    moment: Moment
    lost: str | None
    repeated: int = 0
    torn: bool = False


def moments(count: int, seed: int) -> list[Moment]:
    """Random moments, the phases and the methods in turn."""
    rng, found = random.Random(seed), []
    names, phases = [], []
    for _ in range(count):
        names = names or rng.sample(NAMES, len(NAMES))
        phases = phases or rng.sample(PHASES, len(PHASES))
        found.append(Moment(names.pop(), phases.pop(), rng.random()))
    return found


def forked(work: Callable[[], Any], log: Path) -> int:
    """Exit status of a process that does some work; what it prints goes to the end of a file."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with log.open("a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            work()
            status = 0
        except BaseException:  # noqa: BLE001  the process ends here, whatever it was
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Chaos:
    """Runs that are killed and resumed, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, folder / "model"
        self.references: dict[str, list[dict]] = {}
        assert forked(lambda: save_tiny(self.model), folder / "model.log") == 0, (folder / "model.log").read_text()

    def reference(self, moment: Moment) -> list[dict]:
        """Records of a run that nobody kills."""
        method = moment.method
        if method not in self.references:
            folder = self.folder / method
            folder.mkdir()
            status = forked(lambda: run(self.model, folder, method, None, False, **moment.saving), folder / "log")
            assert status == 0, (folder / "log").read_text()
            self.references[method] = _lines(folder)
        return self.references[method]

    def outcome(self, number: int, moment: Moment) -> Outcome:
        """Kill a run and resume it."""
        folder = self.folder / f"kill_{number}"
        folder.mkdir()
        entries = self.reference(moment)[-1]["seen"][moment.phase]
        at = (moment.phase, int(moment.share * entries))
        log = folder / "log"
        status = forked(lambda: run(self.model, folder, moment.method, at, False, **moment.saving), log)
        if status != (1 if moment.phase == "error" else -signal.SIGKILL):
            return Outcome(moment, f"was to be killed and ended with {status}: {log.read_text()[-2000:]}")
        before = _lines(folder)
        saved = max((line["saved"] for line in before if "saved" in line), default=0)
        # Before the first checkpoint there is nothing to resume from.
        resume = any((path / "trainer_state.json").exists() for path in (folder / "run").glob("checkpoint-*"))
        if resume or not saved:
            status = forked(lambda: run(self.model, folder, moment.method, None, resume, **moment.saving), log)
        if status != 0:
            return Outcome(moment, f"resumed and ended with {status}: {log.read_text()[-2000:]}")
        after = _lines(folder)[len(before) :]
        first = next((line["step"] for line in after if "step" in line), NUM_STEPS + 1)
        lost = self._difference(moment, [*before, *after])
        if moment.phase == "error" and saved != max((line.get("step", 0) for line in before), default=0):
            lost = f"the error left no checkpoint of the state before its step, the last is of step {saved}"
        if first <= saved:
            lost = f"began with step {first} though the checkpoint of step {saved} was whole"
        done = max((line["step"] for line in before if "step" in line), default=0)
        return Outcome(moment, lost, max(done - first + 1, 0), "was not written to its end" in log.read_text())

    def _difference(self, moment: Moment, lines: list[dict]) -> str | None:
        """The first thing that is not as in a run that nobody killed."""
        reference = self.reference(moment)
        steps = {line["step"]: line for line in reference if "step" in line}
        for line in lines:
            wanted = steps.get(line.get("step"), {})
            different = [name for name in line if "step" in line and line[name] != wanted.get(name)]
            if different:
                return f"step {line['step']} differs in {different}: {line}, not {wanted}"
        if lines[-1].get("end") != reference[-1]["end"]:
            return f"ended with {lines[-1].get('end')}, not {reference[-1]['end']}"
        return None


def _lines(folder: Path) -> list[dict]:
    path = folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(outcomes: list[Outcome]) -> str:
    """Kills by phase: how many runs survived."""
    rows = [("kill -9 during", "survived", "lost", "torn checkpoints", "steps repeated")]
    for phase in (*PHASES, "all"):
        own = [one for one in outcomes if phase in (one.moment.phase, "all")]
        lost = sum(one.lost is not None for one in own)
        repeated = sum(one.repeated for one in own)
        rows.append(
            (phase, f"{len(own) - lost} of {len(own)}", str(lost), str(sum(o.torn for o in own)), str(repeated))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    """Print the table; status 1 if a run is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder))
        for number, moment in enumerate(moments(given.moments, given.seed)):
            outcomes.append(chaos.outcome(number, moment))
            if outcomes[-1].lost:
                print(f"{moment}: {outcomes[-1].lost}", flush=True)
    methods = Counter(one.moment.method for one in outcomes)
    print(table(outcomes))
    print(f"{len(outcomes)} kills in {len(methods)} of {len(NAMES)} methods, seed {given.seed}")
    lost = sum(one.lost is not None for one in outcomes)
    print(f"lost {lost}")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
