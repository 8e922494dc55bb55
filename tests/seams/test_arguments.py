# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot work are refused before a model is loaded: the one named here does not exist."""

import pytest
from datasets import Dataset, IterableDataset
from trl import GRPOConfig

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from tests.runs import count_fours, prompts, settings

PICTURE = {"type": "image", "path": "picture.png"}
WORDS = {"type": "text", "text": "Count."}


def build(tmp_path, data=None, args=None, overrides=None, rewards=count_fours, **arguments):
    args = args or DUETGRPOConfig(**settings(tmp_path, **(overrides or {})))
    data = prompts() if data is None else data
    return DUETGRPOTrainer("no/such-model", rewards, args=args, train_dataset=data, **arguments)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"tools": [len]}, "tools"),
        ({"rollout_func": lambda prompts, trainer: {}}, "rollout_func"),
        ({"environment_factory": object}, "environment_factory"),
    ],
)
def test_what_ends_rollouts_itself_needs_plain_grpo(tmp_path, arguments, name):
    with pytest.raises(ValueError, match=f"{name} ends rollouts by its own rules.*Set method='grpo'"):
        build(tmp_path, **arguments)
    with pytest.raises(ValueError, match=f"audit_log=True records what DUET decides; with {name}"):
        build(tmp_path, overrides={"method": "grpo", "audit_log": True}, **arguments)
    with pytest.raises(ValueError, match=f"desired_kl=0.1 cannot have an effect with {name}, where GRPOTrainer"):
        build(tmp_path, overrides={"method": "grpo", "num_iterations": 2, "desired_kl": 0.1}, **arguments)


def test_trls_own_configuration_is_refused(tmp_path):
    with pytest.raises(TypeError, match="args must be a DUETGRPOConfig, got GRPOConfig. It takes all"):
        build(tmp_path, args=GRPOConfig(**settings(tmp_path)))


@pytest.mark.parametrize(
    ("data", "overrides", "error", "message"),
    [
        (Dataset.from_dict({"prompt": ["a"], "image": ["b"]}), {}, ValueError, "DUET trains on text"),
        (prompts(), {"prompt_id_column": "task_id"}, ValueError, "no column 'task_id'"),
        (prompts(), {"audit_log": True, "audit_columns": ["target"]}, ValueError, "no column 'target'"),
        (prompts().rename_column("prompt", "question"), {}, ValueError, "no column 'prompt', only .*'question'"),
        ([{"prompt": "a"}], {}, TypeError, "got list. Dataset.from_list makes one"),
        (
            prompts(5),
            {"method_kwargs": {"prompt_candidates": 2.0}},
            ValueError,
            "prompt_candidates=2 needs 16 prompts .* has 5. Lower it",
        ),
        (
            prompts().to_iterable_dataset(),
            {"method_kwargs": {"prompt_candidates": 2.0}},
            ValueError,
            "a stream does not allow",
        ),
    ],
    ids=["image-column", "prompt-id", "audit-column", "no-prompt", "list", "few-candidates", "streamed-candidates"],
)
def test_data_that_cannot_be_trained_on_is_refused(tmp_path, data, overrides, error, message):
    with pytest.raises(error, match=message):
        build(tmp_path, data, overrides=overrides)


@pytest.mark.parametrize("streamed", [False, True])
def test_images_inside_messages_are_refused(tmp_path, streamed):
    # In a table behind a row of text, in a stream in the row that is read first.
    rows = [[{"role": "user", "content": content}] for content in ([WORDS], [WORDS, PICTURE])]
    data = Dataset.from_dict({"prompt": rows[::-1] if streamed else rows})
    with pytest.raises(ValueError, match=r"holds a message with \['image'\]; DUET trains on text"):
        build(tmp_path, data.to_iterable_dataset() if streamed else data)


def test_a_stream_that_does_not_know_its_columns_is_asked_for_a_row(tmp_path):
    data = IterableDataset.from_generator(lambda: iter([{"question": "a"}]))
    assert data.column_names is None
    with pytest.raises(ValueError, match=r"no column 'prompt', only \['question'\]"):
        build(tmp_path, data)


def test_data_that_can_be_trained_on_is_not_refused(tmp_path):
    parts = Dataset.from_dict({"prompt": [[{"role": "user", "content": [WORDS]}]]})
    for data in (prompts(), prompts(conversational=True), prompts().to_iterable_dataset(), parts):
        with pytest.raises(OSError):  # there is no such model
            build(tmp_path, data)
