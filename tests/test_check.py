# SPDX-License-Identifier: Apache-2.0
"""The commands of `duet-trl`; `check` on this machine, on one with another TRL, and where training cannot start."""

import importlib
import importlib.metadata
import re

import pytest

from duet_trl.__main__ import main
from duet_trl.mistakes import mistakes
from duet_trl.report import environment


def test_the_commands_are_those_that_a_user_needs(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.findall(r"^    (\w+)  ", capsys.readouterr().out, flags=re.M) == ["estimate", "check"]


def test_a_package_that_is_missing_is_named_with_a_remedy_and_a_bug_is_left_alone():
    with pytest.raises(SystemExit, match=r"^error: No module named 'not_there'\. Install it, or the extra"):
        with mistakes():
            importlib.import_module("not_there")
    with pytest.raises(RuntimeError, match="a bug"):
        with mistakes():
            raise RuntimeError("a bug")
    with pytest.raises(SystemExit, match="^error: two lines$"):
        with mistakes(RuntimeError):
            raise RuntimeError("two\n  lines")


def test_versions_and_devices_of_this_machine(capsys):
    assert main(["check", "--fast"]) == 0
    out = capsys.readouterr().out
    assert f"trl {importlib.metadata.version('trl')}" in out and "nothing failed" in out
    assert "ruff" not in out  # of an extra for those who work on the project


def test_a_library_outside_the_range_fails_with_the_command_that_mends_it(capsys, monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.17.0" if name == "trl" else version(name))
    assert main(["check", "--fast"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  trl 1.17.0 is outside <1.17,>=1.16\n        pip install 'trl<1.17,>=1.16'" in out
    assert "something FAILED" in out


def test_a_missing_library_fails_only_if_training_needs_it(capsys, monkeypatch):
    version = importlib.metadata.version

    def installed(name):
        if name in ("peft", "accelerate"):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", installed)
    assert main(["check", "--fast"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  accelerate is not installed" in out
    assert "note    peft is not installed: for LoRA\n        pip install 'duet-trl[peft]'" in out


@pytest.mark.slow
@pytest.mark.vllm
def test_every_engine_trains_and_its_gate_stops_rollouts(capsys):
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert "transformers: 2 steps trained, the gate stopped" in out and "vllm: 2 steps trained" in out


@pytest.mark.slow
def test_a_training_that_cannot_start_shows_its_last_lines(capsys, monkeypatch):
    found = environment.versions
    without = lambda *names: {name: one for name, one in found(*names).items() if name != "vllm"}  # noqa: E731
    monkeypatch.setattr(environment, "versions", without)  # one engine shows it
    # As in a shell that a launcher left behind.
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  transformers: training ended with exit status 1" in out and "MASTER_ADDR" in out
