# SPDX-License-Identifier: Apache-2.0
"""Runs as stock TRL logs them, small enough to do by hand, and the command line of the estimate."""

import json

import pandas as pd
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from duet_trl.__main__ import main

BOX = r"\boxed{1}"  # 9 characters
EIGHT = [  # prompt, completion, reward; one character is one token
    ("p", "x" * 11 + BOX + "y" * 60, 1.0),  # answer at 20 of 80
    ("p", "x" * 11 + BOX, 0.0),  # answer at 20 of 20
    ("p", "x" * 40, 0.0),
    ("p", "x" * 100, 1.0),
    ("q", "x" * 91 + BOX, 0.0),  # answer at 100 of 100
    ("q", "x" * 20, 0.0),
    ("q", "x" * 30, 0.0),
    ("q", "x" * 60, 0.0),
]
EIGHT_FLAGS = "--grace_window 8".split()
PIECES = st.sampled_from(["a", "bc", BOX, r"\boxed{", "}", "\n\n", "<answer>4</answer>", "```\n", "x = 1"])
TEXTS = st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=6).filter(any)


def char_tokenizer():
    """One character of ASCII is one token."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write(folder, step, rows, **columns):
    """One file as TRL writes it, and `char_tokenizer` in the run. rows: (prompt, completion, reward) triples."""
    folder.mkdir(parents=True, exist_ok=True)
    char_tokenizer().save(str((folder.parent if folder.name == "completions" else folder) / "tokenizer.json"))
    table = {
        "step": [step] * len(rows),
        "prompt": [prompt for prompt, _, _ in rows],
        "completion": [completion for _, completion, _ in rows],
        "accuracy": [reward for _, _, reward in rows],
        **columns,
    }
    path = folder / f"completions_{step:05d}.parquet"
    pd.DataFrame(table).to_parquet(path)
    return path


def run(capsys, *arguments):
    """Exit status, output and errors of the command line."""
    try:
        status, refusal = main(["estimate", *map(str, arguments)]), ""
    except SystemExit as ended:
        status, refusal = 1, str(ended)
    captured = capsys.readouterr()
    return status, captured.out, captured.err + refusal


def figures(capsys, tmp_path, *arguments):
    """What the command line writes with --json."""
    path = tmp_path / "estimate.json"
    status, _, errors = run(capsys, *arguments, "--json", path)
    assert status == 0, errors
    return json.loads(path.read_text())


def by_marker(result, name="math"):
    return next(marker for marker in result["measured"]["markers"] if marker["marker"] == name)


def projected(result, marker, budget):
    return next(p for p in result["projected"] if p["marker"] == marker and p["budget"] == budget)


def write_state(folder, *entries):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": list(entries)}))
