# SPDX-License-Identifier: Apache-2.0
"""recipes/fit_surrogate.py from a calibration run to a run that uses the file, and what makes the file stale."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from duet_trl.allocate.static_surrogate import SurrogateFile
from duet_trl.seams.data_checks import prompt_keys
from tests.runs import duet_trainer, logged, prompts
from tests.scripts import forked

ROOT = Path(__file__).parents[2]
MATH = ROOT.parent / "shared" / "data" / "math_train_clean.jsonl"

sys.path.insert(0, str(ROOT / "recipes"))
try:
    import fit_surrogate
finally:
    sys.path.remove(str(ROOT / "recipes"))


@pytest.fixture(scope="module")
def calibration(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An epoch of GRPO over 32 prompts with an audit log, and the data beside it."""
    folder = tmp_path_factory.mktemp("calibration")
    trainer = duet_trainer(tiny_path, folder, method="grpo", audit_log=True, max_steps=4)
    trainer.train()
    prompts().to_json(folder / "data.jsonl")
    return folder


@pytest.fixture(scope="module")
def fitted(calibration: Path, tiny_path: Path) -> SurrogateFile:
    """The file of the calibration run, without a penalty."""
    output = calibration / "surrogate.json"
    fit(calibration, tiny_path, output, "--data", str(calibration / "data.jsonl"), "--penalty", "0")
    return SurrogateFile.read(str(output))


def fit(run: Path, model: Path, output: Path, *options: str) -> None:
    fit_surrogate.main(["--run", str(run), "--model", str(model), "--output", str(output), *options])


def test_the_fit_is_that_of_the_logged_rollouts(calibration: Path, fitted: SurrogateFile, tiny_path: Path) -> None:
    """Eq. 3 and a straight line by pandas and numpy; the feature token by token."""
    log = pandas.concat(pandas.read_parquet(path) for path in (calibration / "duet_audit").glob("*.parquet"))
    assert len(log) == 32 * 4
    sigma = (log.advantage * log.sum_logp).groupby(log.prompt).std(ddof=1)
    assert sigma.gt(0).all()
    keys = prompt_keys(prompts().to_list(), None)
    assert set(fitted.features) == set(keys) == set(sigma.index)
    slope, intercept = np.polyfit([fitted.features[key] for key in sigma.index], sigma, 1)
    assert (fitted.slope, fitted.intercept) == pytest.approx((slope, intercept), rel=1e-6)
    correlation = np.corrcoef([fitted.features[key] for key in sigma.index], sigma)[0, 1]
    assert fitted.about["r_squared"] == pytest.approx(correlation**2, abs=1e-9) and fitted.about["num_prompts"] == 32

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_path), AutoTokenizer.from_pretrained(tiny_path)
    ids = tokenizer(prompts()[11]["prompt"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        table = torch.log_softmax(model(ids).logits[0].double(), dim=-1)
    found = [table[place, ids[0, place + 1]].item() for place in range(ids.shape[1] - 1)]
    assert fitted.features[keys[11]] == pytest.approx(sum(found) / len(found), rel=1e-5)


def test_what_the_fit_says(calibration: Path, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fit(calibration, tiny_path, tmp_path / "s.json", "--data", str(calibration / "data.jsonl"))
    said = capsys.readouterr().out
    assert "R^2 = " in said and "over 32 prompts" in said and "has 32 prompts of" in said


def test_a_run_plans_by_the_file_from_its_first_step(fitted: SurrogateFile, tiny_path: Path, tmp_path: Path) -> None:
    """Counts of the first step, where `online` is uniform, follow the predicted sigma at equal lengths."""
    trainer = duet_trainer(tiny_path, tmp_path, **ridge(fitted.path), allocation_solver="greedy", audit_log=True)
    trainer.train()
    log = pandas.read_parquet(tmp_path / "duet_audit" / "step_000001.parquet").drop_duplicates("prompt")
    sigma, counts = fitted.sigma(log.prompt.tolist()), log.num_rollouts.to_numpy()
    assert len(set(counts)) > 1
    order = np.argsort(sigma, kind="stable")
    assert (np.diff(counts[order]) >= -1).all() and counts[order[-1]] > counts[order[0]]
    assert logged(trainer, "duet/cold_prompts") == [0.0, 0.0]


def ridge(path: str) -> dict:
    return {
        "method": "paper",
        "surrogate": "ridge",
        "surrogate_file": path,
        "trim": False,
        "abort": False,
        "max_steps": 2,
    }


def test_a_file_of_another_model_or_other_data_is_refused_before_a_model_is_loaded(
    fitted: SurrogateFile, tiny_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="was made for the model .* and this run trains 'nowhere/other'"):
        duet_trainer("nowhere/other", tmp_path, **ridge(fitted.path), data=prompts())
    with pytest.raises(ValueError, match="lacks 1 of 33 prompts.*Fit it for these data"):
        duet_trainer(tiny_path, tmp_path, **ridge(fitted.path), data=prompts(33))
    with pytest.raises(ValueError, match="lacks 32 of 32 prompts, such as 'Say 0 '"):
        duet_trainer(tiny_path, tmp_path, **ridge(fitted.path), prompt_id_column="name")
    with pytest.raises(ValueError, match="surrogate='ridge' needs surrogate_file"):
        duet_trainer(tiny_path, tmp_path, **ridge(""))


def test_what_cannot_be_fitted_is_refused(calibration: Path, tiny_path: Path, tmp_path: Path) -> None:
    output, data = tmp_path / "s.json", str(calibration / "data.jsonl")
    with pytest.raises(ValueError, match="duet_audit has no prompt .* audit_log=True"):
        fit(tmp_path, tiny_path, output, "--data", data)
    with pytest.raises(ValueError, match="has no recipe.yaml that names its data. Give the file as --data"):
        fit(calibration, tiny_path, output)
    prompts(20).to_json(tmp_path / "fewer.jsonl")
    with pytest.raises(ValueError, match="12 of the 32 prompts of .* are not in the training data"):
        fit(calibration, tiny_path, output, "--data", str(tmp_path / "fewer.jsonl"))
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.skipif(not MATH.exists(), reason="needs the real MATH file in ../shared/data")
def test_a_recipes_run_names_its_own_data(tiny_path: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "math.jsonl", tmp_path / "out"
    data.write_text("".join(MATH.read_text().splitlines(keepends=True)[:40]))
    base = shutil.copytree(tiny_path, tmp_path / "base")
    arguments = ["recipes/math_qwen3.py", "--config", "recipes/configs/math_tiny_smoke.yaml"]
    arguments += ["--model_name_or_path", str(base), "--dataset_name", str(data), "--output_dir", str(out)]
    arguments += ["--audit_log", "true", "--allocate", "false", "--trim", "false", "--abort", "false"]
    done = forked(arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    fit(out, base, tmp_path / "surrogate.json")
    written = json.loads((tmp_path / "surrogate.json").read_text())
    visited = pandas.read_parquet(out / "duet_audit").prompt.nunique()
    assert written["about"]["num_prompts"] == visited < len(written["features"]) <= 40
