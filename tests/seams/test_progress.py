# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on the console, and what it does not take from the log."""

import io
import re
import sys

import pytest
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerState

from duet_trl.evaluation.callbacks import HeldOutEvaluation
from duet_trl.seams.progress import Figures, ProgressBar, ProgressLine, remaining, shown
from tests.runs import duet_trainer, logged, prompts


class Seen(TrainerCallback):
    """Entries as an integration of `report_to` gets them."""

    def __init__(self) -> None:
        self.entries = []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.entries.append(dict(logs))


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@pytest.mark.parametrize("disable_tqdm", [True, False], ids=["off", "default"])
def test_without_a_terminal_a_step_is_one_line_with_the_four_figures(tiny_path, tmp_path, capfd, disable_tqdm):
    """One line per log entry, nothing of TRL's and transformers' own, and no bar, whatever `disable_tqdm` says."""
    seen = Seen()
    trainer = duet_trainer(tiny_path, tmp_path, disable_tqdm=disable_tqdm, max_steps=2, callbacks=[seen])
    trainer.add_callback(HeldOutEvaluation(trainer, ["Say 4 "], lambda index, ids: True, every=0))
    trainer.train()
    out, err = capfd.readouterr()
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert "\r" not in err.rpartition("Loading weights")[2]
    assert "{" not in out + err
    reward, tokens = (
        [number(value) for value in logged(trainer, name)] for name in ("reward", "duet/generated_tokens")
    )
    assert lines[0] == "step 0/2 | held out 1"
    for step in (1, 2):
        figures = f"reward {reward[step - 1]} | tokens {tokens[step - 1]} | held out 1"
        assert re.fullmatch(re.escape(f"step {step}/2 | {figures}") + r" \| ETA \d:\d\d:\d\d", lines[step])
    assert lines[2].endswith("ETA 0:00:00")
    assert re.fullmatch(r"step 2/2 \| trained in 0:\d\d:\d\d", lines[3])
    assert lines[4] == "step 2/2 | held out 1"
    assert len(lines) == 5
    steps = [entry for entry in seen.entries if "reward" in entry]
    assert len(steps) == 2 and all("duet/weight_max" in entry and len(entry) > 50 for entry in steps)
    assert "duet/weight_max" in logged_entries(trainer)[0]


def logged_entries(trainer):
    return [entry for entry in trainer.state.log_history if "reward" in entry]


class Terminal(io.StringIO):
    """Standard error that says it is one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_bar_with_the_figures_and_no_lines(tiny_path, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    budget = {"budget_reading": "tokens", "budget_tokens": 1500.0}
    trainer = duet_trainer(tiny_path, tmp_path, disable_tqdm=False, max_steps=2, **budget)
    trainer.train()
    out, err = capfd.readouterr().out, sys.stderr.getvalue()
    reward, tokens = logged(trainer, "reward")[1], logged(trainer, "duet/generated_tokens")[1]
    assert re.search(rf"2/2 .*reward={number(reward)}, tokens={number(tokens)} of 1,500", err)
    assert "{" not in out + err and "step 1/2" not in out + err


def test_evaluations_are_shown_too(tiny_path, tmp_path, capfd):
    for disable_tqdm in (True, False):
        trainer = duet_trainer(tiny_path, tmp_path, eval_dataset=prompts(8), max_steps=1, disable_tqdm=disable_tqdm)
        trainer.evaluate()
        out, err = capfd.readouterr()
        assert re.search(r"^step 0/\d+ \| eval reward -?\d", out, flags=re.M)
        assert "8/8" not in err and "4/4" not in err


def test_the_figures_of_an_entry():
    assert shown({"held_out/average": 0.5, "held_out/math500/mean@4": 0.7}) == {"held out": "0.5"}
    assert shown({"held_out/mean@4": 0.25, "held_out/low": 0.2}) == {"held out": "0.25"}
    assert shown({"duet/generated_tokens": 15824.0, "reward": 0.51234}) == {"reward": "0.5123", "tokens": "15,824"}
    with_budget = {"duet/generated_tokens": 950.0, "duet/budget_tokens": 1000.4}
    assert shown(with_budget, counts_tokens=True) == {"tokens": "950 of 1,000"}
    assert shown(with_budget) == {"tokens": "950"}  # a budget of rollouts, at their expected lengths
    assert shown({"reward": None, "entropy": 1.0}) == {}  # what TRL logs where every value is nan
    assert Figures().line(TrainerState(), {"loss": 1.0}) is None


def test_the_pace_is_that_since_training_began_in_this_process():
    # 90 seconds for 3 steps behind a checkpoint of step 10: 7 steps are left of 20.
    assert remaining(90.0, 3, TrainerState(global_step=13, max_steps=20)) == pytest.approx(90.0 / 3 * 7)
    assert remaining(5.0, 0, TrainerState(global_step=10, max_steps=10)) == 0.0


class Own(ProgressCallback):
    """A user's."""


def test_other_callbacks_stay_and_ours_go_by_the_names_that_scripts_use(tiny_path, tmp_path):
    pytest.importorskip("IPython", reason="transformers' callback for notebooks needs it")
    from transformers.utils.notebook import NotebookProgressCallback

    trainer = duet_trainer(tiny_path, tmp_path, disable_tqdm=False, callbacks=[Own(), NotebookProgressCallback()])
    kinds = {type(callback) for callback in trainer.callback_handler.callbacks}
    assert (
        Own in kinds and NotebookProgressCallback in kinds and ProgressBar in kinds and ProgressCallback not in kinds
    )
    trainer.remove_callback(Own)
    trainer.remove_callback(ProgressCallback)
    assert ProgressBar not in [type(callback) for callback in trainer.callback_handler.callbacks]
    trainer = duet_trainer(tiny_path, tmp_path)
    trainer.remove_callback(PrinterCallback)
    assert ProgressLine not in [type(callback) for callback in trainer.callback_handler.callbacks]
