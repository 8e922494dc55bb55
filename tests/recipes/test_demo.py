# SPDX-License-Identifier: Apache-2.0
"""The demo: when it measures and ends, what it shows of given runs, and both runs for five seconds."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.sums import held_out_problems
from tests.pretrained import smollm2
from tests.processes import fresh

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "recipes"))

import demo  # noqa: E402
import sums_watch  # noqa: E402


def score(value):
    return {"value": value, "low": value - 0.05, "high": value + 0.05}


def point(seconds, tokens, batches, stopped, free):
    servings = {
        name: {way: score(value) for way, value in zip(("sampled", "greedy"), values, strict=True)}
        for name, values in (("stopped", stopped), ("free", free))
    }
    return {"seconds": seconds, "tokens": tokens, "batches": batches, "servings": servings}


START = point(0.0, 0, 0, (0.25, 0.5), (0.05, 0.0))
RUNS = {
    "grpo_stop": {
        "name": "GRPO + stop string",
        "points": [START, point(90.0, 8000, 20, (0.4, 0.6), (0.0, 0.0)), point(181.0, 16000, 40, (0.5, 0.75), (0, 0))],
    },
    "duet": {"name": "duet", "points": [START, point(182.6, 12345, 60, (0.75, 0.875), (0.625, 0.8))]},
}


def test_defaults_are_those_of_make_demo():
    args = demo.parse([])
    assert (args.seconds, args.seed, args.problems, args.only) == (200, 0, 64, None)
    assert demo.parse(["--only", "duet", "--seconds", "5"]).only == "duet"


@pytest.mark.parametrize("given", [["--seconds", "0"], ["--problems", "-1"], ["--only", "ppo"]])
def test_what_cannot_be_is_refused_and_named(given, capsys):
    with pytest.raises(SystemExit):
        demo.parse(given)
    error = capsys.readouterr().err
    assert given[0] in error and given[1] in error


def test_the_table_has_the_start_and_the_end_of_each_run():
    lines = [" ".join(line.split()) for line in demo.table(RUNS).splitlines()]
    assert lines[0] == "start GRPO + stop string duet"
    assert lines[2:] == [
        "last answer at T = 1 0.25 / 0.05 0.50 / 0.00 0.75 / 0.62",
        "greedy 0.50 / 0.00 0.75 / 0.00 0.88 / 0.80",
        "tokens generated 0 16,000 12,345",
        "",
        "served with the stop string / served freely",
    ]
    alone = demo.table({"duet": RUNS["duet"]}).splitlines()
    assert " ".join(alone[0].split()) == "start duet"


def test_the_sentence_has_seconds_and_tokens():
    assert demo.sentence(RUNS, seed=3) == (
        "GRPO + stop string trained for 181 s on 16,000 generated tokens in 40 batches, "
        "duet trained for 183 s on 12,345 generated tokens in 60 batches; seed 3."
    )


def test_the_figure_has_every_measurement_of_both_servings_against_minutes():
    figure = demo.draw(RUNS)
    stopped, free = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["served with the stop string", "served freely"]
    assert [line.get_label() for line in free.lines] == ["GRPO + stop string", "duet"]
    assert stopped.lines[0].get_xydata().tolist() == [[0, 0.25], [1.5, 0.4], [181 / 60, 0.5]]
    assert free.lines[1].get_xydata().tolist() == [[0, 0.05], [182.6 / 60, 0.625]]


class Engine:
    """Answers every sum, and a second one if nothing stops it; takes 100 seconds for each call."""

    def __init__(self, clock, problems):
        self.clock, self.answers = clock, {problem.prompt: problem.answer for problem in problems}

    def generate(self, prompts, wanted, use_tqdm):
        self.clock[0] += 100.0
        lines = [f" \\boxed{{{self.answers[prompt]}}}\n" for prompt in prompts]
        texts = [line if one.stop else f"{line}1 + 1 = \\boxed{{0}}" for line, one in zip(lines, wanted, strict=True)]
        return [
            SimpleNamespace(outputs=[SimpleNamespace(text=text)] * one.n)
            for text, one in zip(texts, wanted, strict=True)
        ]


@pytest.mark.vllm
def test_a_run_is_measured_thrice_and_its_clock_counts_training_alone(monkeypatch, capsys):
    clock, synced, problems = [0.0], [], held_out_problems(4)
    monkeypatch.setattr(sums_watch.time, "perf_counter", lambda: clock[0])
    trainer = SimpleNamespace(
        engine=SimpleNamespace(sync_weights=lambda: synced.append(clock[0])),
        vllm_generation=SimpleNamespace(llm=Engine(clock, problems)),
    )
    watch, control = sums_watch.Watch(trainer, 60.0, problems), SimpleNamespace(should_training_stop=False)
    watch.on_train_begin()
    while not control.should_training_stop:
        logs = {"loss": 0.1, "duet/generated_tokens": 500.0, "reward": 0.5, "number": watch.batches + 1}
        watch.on_log(None, None, control, logs)
        clock[0] += 8.0
        watch.on_log(None, None, control, {"loss": 0.1, "duet/seconds_update": 3.0})  # the batch's last update
    spent = [(point["batches"], point["tokens"], point["seconds"]) for point in watch.points]
    assert spent == [(0, 0, 0.0), (4, 2000, 32.0), (8, 4000, 64.0)]  # 30 and 60 seconds are over
    assert len(synced) == 3
    assert [(one["number"], one["duet/seconds_update"]) for one in (watch.first, watch.last)] == [(1, 3.0), (8, 3.0)]
    for each in watch.points:
        found = {
            name: [ways[way]["value"] for way in ("sampled", "greedy")] for name, ways in each["servings"].items()
        }
        assert found == {"stopped": [1.0, 1.0], "free": [0.0, 0.0]}
        assert each["servings"]["stopped"]["sampled"]["num_samples"] == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0:00  held out: 1.00 served with the stop string, 0.00 served freely"
    assert lines[1] == "0:08  batch 1  reward 0.500  tokens 500"
    assert lines[2] == "0:24  batch 3  reward 0.500  tokens 1,500"  # not the one after eight seconds


@pytest.mark.slow
@pytest.mark.vllm
def test_both_runs_train_and_are_reported(tmp_path):
    smollm2()
    done = fresh(["recipes/demo.py", "--seconds", "5", "--problems", "4", "--output_dir", str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "demo.json").read_text())
    assert list(found["runs"]) == ["grpo_stop", "duet"] and found["seed"] == 0
    assert {"python", "torch", "trl"} <= found["versions"].keys() and found["hardware"]["cores"] >= 1
    for run in found["runs"].values():
        first, *_, last = run["points"]
        assert first["seconds"] == first["tokens"] == 0
        assert last["seconds"] >= 5 and last["tokens"] > 0
        assert run["first"]["duet/generated_tokens"] > 0 and run["last"]["completions/mean_length"] > 0
    assert demo.table(found["runs"]) in done.stdout
    assert "served freely" in (tmp_path / "demo.svg").read_text()


def test_the_page_of_results_shows_the_committed_run():
    record = json.loads((ROOT / "benchmarks" / "results" / "demo_smollm2.json").read_text())
    page = (ROOT / "docs" / "performance.md").read_text()
    assert demo.sentence(record["runs"], record["seed"]) in page
    for row in demo.rows_of(record["runs"])[1:]:
        assert f"| {' | '.join(row)} |" in page
    assert record["settings"] == demo.SETTINGS | {"bf16": True}
    assert {name: run["settings"] for name, run in record["runs"].items()} == {
        name: arm.settings for name, arm in demo.ARMS.items()
    }
