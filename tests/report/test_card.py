# SPDX-License-Identifier: Apache-2.0
"""What a model card says of the course of a run."""

from collections import defaultdict

from duet_trl.report.card import card_section

HARDWARE = {"cores": 2, "processor": "P", "gpu": None}


def course(history: list[dict]) -> dict[str, list[str]]:
    """First and last value by metric, as the card shows them."""
    section = card_section(defaultdict(lambda: "x"), history, "seed: 1\n", {"trl": "1"}, HARDWARE)
    lines = section.partition("### History of the run")[2].partition("###")[0].split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {name: values for name, *values in rows[2:]}


def test_metrics_and_every_accuracy_have_their_first_and_last_value():
    history = [
        {"step": 0, "held_out/math500/mean@4": 0.25, "held_out/math500/mean@4_low": 0.2, "held_out/average": 0.9},
        {"step": 1, "reward": 0.5, "duet/generated_tokens": 300.0, "held_out/math500/mean_length": 7.0},
        {"step": 1, "held_out/math500/mean@4": 0.5, "held_out/math500/greedy": 0.6},
        {"step": 2, "reward": 0.75, "duet/generated_tokens": None},
    ]
    assert course(history) == {
        "reward": ["0.5", "0.75"],
        "duet/generated_tokens": ["300", "300"],
        "held_out/math500/mean@4": ["0.25", "0.5"],
        "held_out/math500/mean@4_low": ["0.2", "0.2"],
        "held_out/math500/greedy": ["0.6", "0.6"],
    }


def test_a_log_without_these_figures_has_no_rows():
    assert course([{"step": 1, "loss": 1.0}]) == {}
