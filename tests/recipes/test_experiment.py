# SPDX-License-Identifier: Apache-2.0
"""The experiment runner: what a grid comes to, the commands, and runs that are done, failed, stopped or changed.

Fast tests run a script of a few lines in the place of a recipe, in real processes; the slow one trains.
"""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(RECIPES))

import experiment  # noqa: E402
from run_file import read_runs  # noqa: E402

from tests.recipes.stored_runs import record  # noqa: E402

SCRIPT = """
import json, sys, time, yaml
from pathlib import Path
asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
fields = yaml.safe_load(Path(asked["--config"]).read_text())
folder = Path(fields["output_dir"])
with (folder.parents[1] / "starts").open("a") as starts:
    starts.write(f"{fields['run_name']} {fields['seed']} {asked.get('--resume_from_checkpoint')}\\n")
record = json.loads(Path(__file__).with_name("record.json").read_text())
def write(status):
    (folder / "run.json").write_text(json.dumps(record | {"cell": folder.parent.name, "status": status}))
write("running")
if fields.get("temperature") == 0.5:
    sys.exit("no memory left")
if fields.get("temperature") == 0.25:  # stops with a checkpoint, as the trainer does at Ctrl-C
    try:
        (folder / "checkpoint-1").mkdir()
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
write("done")
"""


def grid(folder: Path, **content) -> Path:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "record.json").write_text(json.dumps(vars(record())))
    (folder / "base.yaml").write_text(yaml.safe_dump({"use_cpu": True, "bf16": False, "beta": 0.1, "top_p": 0.9}))
    shared = {"script": str(folder / "script.py"), "config": str(folder / "base.yaml"), "seeds": [3, 5]}
    (folder / "own.yaml").write_text(yaml.safe_dump(shared | content, sort_keys=False))
    return folder / "own.yaml"


def main(place: Path, *options: str) -> int:
    return experiment.main(["--grid", str(place), "--output_dir", str(place.parent / "runs"), *options])


def starts(folder: Path) -> list[str]:
    return (folder / "runs" / "starts").read_text().splitlines()


def test_a_run_is_its_file_then_what_all_share_then_its_line_and_every_cell_comes_before_the_next_seed(tmp_path):
    place = grid(tmp_path, beta=0.2, runs={"one": None, "two": {"beta": 0.3, "config": None, "accelerate": "fsdp2"}})
    runs = experiment.plan(place, Path("out"))
    assert [run.name for run in runs] == ["one/seed_3", "two/seed_3", "one/seed_5", "two/seed_5"]
    assert runs[0].fields.items() >= {"beta": 0.2, "top_p": 0.9, "seed": 3, "output_dir": "out/one/seed_3"}.items()
    assert runs[1].fields["beta"] == 0.3 and "top_p" not in runs[1].fields and runs[1].fields["run_name"] == "own/two"
    assert [run.name for run in experiment.plan(place, Path("out"), "t*")] == ["two/seed_3", "two/seed_5"]
    assert [run.name for run in experiment.plan(place, Path("out"), "*/seed_5")] == ["one/seed_5", "two/seed_5"]
    words = [experiment.command(run, gpus) for run, gpus in ((runs[0], 0), (runs[0], 1), (runs[0], 8), (runs[1], 8))]
    assert words[0] == [sys.executable, str(tmp_path / "script.py"), "--config", "out/one/seed_3/config.yaml"]
    files = [Path(one[one.index("--config_file") + 1]) for one in words[1:]]
    assert [path.stem for path in files] == ["single_gpu", "ddp", "fsdp2"] and all(path.is_file() for path in files)


def test_what_is_done_is_skipped_and_what_failed_is_tried_again_behind_the_others(tmp_path, capsys):
    place = grid(tmp_path, seeds=[3], runs={"fails": {"temperature": 0.5}, "works": {}})
    assert main(place) == 1
    assert starts(tmp_path) == ["own/fails 3 None", "own/works 3 None"]
    said = capsys.readouterr().out
    assert "2 runs, 0 of them done" in said and "fails/seed_3: failed with exit status 1" in said
    assert "no memory left" in (tmp_path / "runs" / "fails" / "seed_3" / "output.log").read_text()
    found = [(one.cell, one.status) for one in read_runs(tmp_path / "runs").values()]
    assert found == [("fails", "running"), ("works", "done")]
    grid(tmp_path, seeds=[3], runs={"fails": {}, "works": {}})  # the mistake is mended
    assert main(place) == 0 and starts(tmp_path)[2:] == ["own/fails 3 None"]
    assert "2 runs, 1 of them done" in capsys.readouterr().out


def test_a_first_ctrl_c_lets_the_run_end_and_the_next_call_resumes_it(tmp_path):
    place = grid(tmp_path, seeds=[3], runs={"slow": {"temperature": 0.25}, "next": {}})

    def as_leader() -> None:
        os.setsid()
        sys.exit(main(place))

    runner = multiprocessing.get_context("fork").Process(target=as_leader)
    runner.start()
    checkpoint = tmp_path / "runs" / "slow" / "seed_3" / "checkpoint-1"
    while not checkpoint.exists():
        runner.join(0.1)
        assert runner.is_alive()
    os.killpg(runner.pid, signal.SIGINT)  # as a terminal does
    runner.join()
    assert runner.exitcode == 1
    assert starts(tmp_path) == ["own/slow 3 None"]
    with pytest.raises(SystemExit, match="has other values of temperature. Remove .*slow/seed_3 to repeat it"):
        main(grid(tmp_path, seeds=[3], runs={"slow": {}, "next": {}}))
    checkpoint.rmdir()
    (checkpoint.parent / "checkpoint-2").mkdir()
    config = checkpoint.parent / "config.yaml"
    config.write_text(config.read_text().replace("temperature: 0.25", "temperature: 0.75"))
    before = signal.getsignal(signal.SIGINT)
    assert main(grid(tmp_path, seeds=[3], runs={"slow": {"temperature": 0.75}, "next": {}})) == 0
    assert signal.getsignal(signal.SIGINT) == before
    assert starts(tmp_path)[1:] == ["own/slow 3 true", "own/next 3 None"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({"runs": {"one": {}}}, ("--only", "absent"), "matches none of one/seed_3, one/seed_5"),
        ({}, (), "matches none of no runs"),
        ({"runs": {"one": {}, "two": {"keep_probability": 2.0}}}, (), "keep_probability must be"),
        ({"runs": {"one": {"temperatur": 0.5}}}, (), "'--temperatur', which is not an option"),
        ({"runs": {"one": {"config": "absent.yaml"}}}, (), "there is no file 'absent.yaml'"),
        ({"runs": ["one"]}, (), r"needs runs, a mapping, and seeds, a list; got \['one'\]"),
        ({"runs": {"one": {}}, "seeds": 3}, (), "needs runs, a mapping, and seeds, a list; got .* and 3"),
        ({"runs": {"one": "duet"}}, (), "run 'one' of .*own.yaml needs a script"),
        *(
            ({"runs": {name: {}}}, (), "its name may hold no '/'")
            for name in ("../out", "..", ".", "/absolute", "a/b")
        ),
    ],
)
def test_mistakes_end_the_runner_before_anything_runs(tmp_path, content, options, message):
    with pytest.raises(SystemExit, match=message):
        main(grid(tmp_path, **content), *options)
    assert not (tmp_path / "runs" / "starts").exists()
