# SPDX-License-Identifier: Apache-2.0
"""What a model card says about held-out accuracy."""

from duet_trl.report.card import card_section

SETTINGS = dict.fromkeys(
    (
        "method",
        "method_kwargs",
        "budget_fraction",
        "budget_reading",
        "num_generations",
        "marker",
        "keep_probability",
        "max_completion_length",
    ),
    "x",
)
HARDWARE = {"cores": 2, "processor": "P", "gpu": None}


def accuracy(history: list[dict]) -> list[str]:
    """Lines of the table of a card, its head first; empty without one."""
    section = card_section(SETTINGS, history, "seed: 1\n", {"trl": "1"}, HARDWARE)
    _, found, after = section.partition("### Held-out accuracy")
    return [line for line in after.partition("###")[0].splitlines() if line.startswith("|")] if found else []


def measured(step: int, **values: float) -> dict:
    entry = {"step": step, "held_out/average": 0.9}
    for suite, value in values.items():
        name = f"held_out/{suite}/mean@4"
        entry |= {name: value, f"{name}_low": value - 0.05, f"{name}_high": value + 0.05}
        entry |= {f"held_out/{suite}/mean@1": 0.77, f"held_out/{suite}/best@4": 0.88}
    return entry


def test_suites_have_a_column_each_and_measurements_a_row():
    history = [measured(0, math500=0.25, gsm8k=0.5), {"step": 1, "loss": 1.0}, measured(30, math500=0.75, gsm8k=0.625)]
    head, _, first, last = accuracy(history)
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["step", "math500", "gsm8k"]
    assert "0.250 [0.200, 0.300]" in first and "0.500 [0.450, 0.550]" in first and first.startswith("| 0 ")
    assert "0.750 [0.700, 0.800]" in last and "0.625 [0.575, 0.675]" in last and last.startswith("| 30 ")
    assert "0.77" not in first and "0.88" not in first


def test_a_single_task_has_one_column():
    entry = {"step": 7, "held_out/mean@4": 0.5, "held_out/low": 0.4, "held_out/high": 0.6, "held_out/mean_length": 9.0}
    head, _, row = accuracy([entry])
    assert "held out" in head
    assert "0.500 [0.400, 0.600]" in row


def test_a_run_without_measurements_has_no_table():
    assert accuracy([{"step": 1, "loss": 1.0}]) == []
