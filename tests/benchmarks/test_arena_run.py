# SPDX-License-Identifier: Apache-2.0
"""The arena from end to end, for real, and the timetable of a run."""

import sys
from pathlib import Path

import pytest

from benchmarks.arena.__main__ import main
from benchmarks.arena.measuring import Size, Timetable
from benchmarks.arena.pace import CURVE
from benchmarks.arena.profiles import PROFILES, TUNING_SEED
from benchmarks.arena.records import REPORT, START, TUNE, Run, read
from benchmarks.arena.tuning import choose

UPDATES = {"grpo_8": 1, "grpo_4_x4": 4}
"""Of a batch: four passes."""
NAMES = tuple(UPDATES)
WAY, WHOLE = Size(200, 2, greedy=False), Size(400, 4, greedy=True)


@pytest.mark.parametrize(
    ("every", "marks", "ends_at", "expected"),
    [
        (10, (25,), 40, {10: WAY, 20: WAY, 25: WHOLE, 30: WAY, 40: WHOLE}),
        (10, (20,), 43, {10: WAY, 20: WHOLE, 30: WAY, 40: WAY, 43: WHOLE}),
        (0, (24, 32), 32, {24: WHOLE, 32: WHOLE}),
    ],
    ids=["a mark off the beat", "an end off the beat", "nothing on the way"],
)
def test_a_timetable_measures_the_whole_at_marks_and_at_the_end(every, marks, ends_at, expected) -> None:
    table = Timetable(WAY, WHOLE, every, marks, horizon=ends_at)
    found = {step: table.due(step, step == ends_at) for step in range(1, ends_at + 1)}
    assert {step: size for step, size in found.items() if size is not None} == expected


def one(runs: list[Run], entrant: str, stage: str, horizon: int, rate: float | None = None) -> Run:
    found = [r for r in runs if (r.entrant, r.stage, r.horizon) == (entrant, stage, horizon)]
    (run,) = [r for r in found if rate is None or r.learning_rate == rate]
    return run


@pytest.mark.vllm
@pytest.mark.slow
def test_the_smallest_arena_makes_every_run_once_and_goes_on_from_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["arena", "run", "--profile", "smoke", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--tasks", "sums", "--entrants", ",".join(NAMES), "--seeds", "0"])
    main()
    capsys.readouterr()
    path = tmp_path / "outputs" / "bench" / "arena" / "smoke.jsonl"
    runs, smoke = read(path), PROFILES["smoke"]
    assert sorted((r.entrant, r.stage, r.horizon, r.seed) for r in runs) == sorted(
        [("", START, 0, 0)]
        + [(name, TUNE, 2, TUNING_SEED) for name in NAMES]
        + [(name, TUNE, 4, TUNING_SEED) for name in NAMES]
        + [(name, REPORT, 4, 0) for name in NAMES]
    )
    (before,) = one(runs, "", START, 0).measurements
    assert (before.step, before.generated_tokens, len(before.last)) == (0, 0, smoke.problems_end)

    for name, updates in UPDATES.items():
        rate = choose(runs, "sums", name, smoke)
        first, second = one(runs, name, TUNE, 2, rate), one(runs, name, TUNE, 4, rate)
        # As many batches for everyone, however many steps it makes of one.
        steps = [[m.step for m in run.measurements] for run in (first, second)]
        assert steps == [[updates, 2 * updates], [3 * updates, 4 * updates]]
        # The second rung makes batches 3 and 4 only, and its costs include those of the first.
        tokens = [round(value) for value in second.curves["duet/generated_tokens"] if value is not None]
        assert len(tokens) == 2
        spent = first.measurements[-1].generated_tokens + tokens[0]
        assert [m.generated_tokens for m in second.measurements] == pytest.approx([spent, spent + tokens[1]], rel=1e-3)
        costs = [*first.measurements, *second.measurements]
        assert all(a.seconds < b.seconds for a, b in zip(costs, costs[1:], strict=False))
        assert costs[0].generated_tokens == pytest.approx(first.curves["duet/generated_tokens"][0], rel=1e-3)
        assert costs[0].trained_tokens == pytest.approx(updates * first.curves["duet/trained_tokens"][0], rel=1e-3)
        assert costs[0].trained_tokens > 0

        last = one(runs, name, REPORT, 4, rate).measurements[-1]
        assert len(last.last) == len(last.first) == len(last.greedy) == smoke.problems_end
        assert max(last.last) <= last.samples == smoke.samples_end

    grpo_8, grpo_4 = (one(runs, name, REPORT, 4) for name in NAMES)
    assert [(m.step, len(m.last)) for m in grpo_8.measurements] == [(2, smoke.problems), (4, smoke.problems_end)]
    target = smoke.share * grpo_8.measurements[-1].generated_tokens
    *_, earlier, end = grpo_4.measurements
    assert end.generated_tokens >= target - 1
    assert end.step > 4 * 4 and end.step == len(grpo_4.curves["duet/generated_tokens"]) == len(grpo_4.curves[CURVE])
    assert min(grpo_4.curves[CURVE]) > 0
    # It ended with the first batch that reached the target.
    newest = [value for value in grpo_4.curves["duet/generated_tokens"] if value is not None][-1]
    assert end.generated_tokens - newest < target
    assert grpo_4.measurements[0].step == 4
    assert {4, 16} <= {m.step for m in grpo_4.measurements}  # at the reference's steps, and at its batches
    assert earlier.step < end.step

    written = path.read_bytes()
    main()
    assert capsys.readouterr().out.startswith("0 runs to make")
    assert path.read_bytes() == written
