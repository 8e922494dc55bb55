# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on the console, and what it does not take from the log."""

import re

import pytest
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from duet_trl.seams.progress import ProgressBar, ProgressLine, shown
from tests.runs import duet_trainer, logged, prompts


class Seen(TrainerCallback):
    """Entries as an integration of `report_to` gets them."""

    def __init__(self) -> None:
        self.entries = []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.entries.append(dict(logs))


@pytest.mark.parametrize("bar", [True, False], ids=["bar", "lines"])
def test_a_step_shows_a_few_figures_and_reports_all(tiny_path, tmp_path, capfd, bar):
    seen = Seen()
    trainer = duet_trainer(tiny_path, tmp_path, disable_tqdm=not bar, max_steps=2, callbacks=[seen])
    trainer.train()
    out, err = capfd.readouterr()
    reward = f"{logged(trainer, 'reward')[1]:.4g}"
    if bar:
        assert "{" not in out + err
        assert re.search(rf"2/2 .*reward={reward}.*tokens=", err)
    else:
        lines = [line for line in out.splitlines() if line.startswith("{")]
        assert len(lines) == 3 and max(map(len, lines)) < 120  # two steps and the end
        assert lines[1].startswith(f"{{'step': '2/2', 'reward': '{reward}', 'tokens': ")
    steps = [entry for entry in seen.entries if "reward" in entry]
    assert len(steps) == 2 and all("duet/weight_max" in entry and len(entry) > 50 for entry in steps)
    assert "duet/weight_max" in trainer.state.log_history[0]


def test_evaluations_are_shown_too(tiny_path, tmp_path, capfd):
    trainer = duet_trainer(tiny_path, tmp_path, eval_dataset=prompts(8), max_steps=1)
    trainer.evaluate()
    assert re.search(r"\{'step': '0/\d+', 'eval reward': '-?\d", capfd.readouterr().out)
    assert shown({"held_out/average": 0.5, "held_out/math500/mean@4": 0.7}) == {"held out": "0.5"}
    assert shown({"held_out/mean@4": 0.25, "held_out/low": 0.2}) == {"held out": "0.25"}


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


def test_large_numbers_are_written_out():
    assert shown({"duet/generated_tokens": 15824.0, "reward": 0.51234}) == {"reward": "0.5123", "tokens": "15,824"}
