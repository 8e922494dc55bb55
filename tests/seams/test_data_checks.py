# SPDX-License-Identifier: Apache-2.0
"""Every row of a data set is looked at before a model is loaded, of a stream as they come; an error names it."""

from functools import partial

import pytest
from datasets import Dataset, IterableDataset

from duet_trl.rewards import ChoiceVerifier
from duet_trl.seams import data_checks
from tests.runs import count_fours, duet_trainer, prompts
from tests.seams.test_arguments import build

PART = {"type": "text", "text": "Count."}
GOOD = [{"role": "user", "content": "Count."}]
SEVERAL = [{"role": "user", "content": [PART]}]
PICTURE = [{"role": "user", "content": [PART, {"type": "image", "text": "picture.png"}]}]


def with_row(good, bad) -> Dataset:
    """Six rows, of which the fifth is another one."""
    return Dataset.from_dict({"prompt": [*[good] * 4, bad, good]})


BAD_ROWS = {
    "null": (with_row("a", None), "row 4 is None, neither text nor a list of messages"),
    "empty": (with_row("a", ""), "row 4 is empty"),
    "numbers": (Dataset.from_dict({"prompt": [1, 2]}), "row 0 is 1, neither text nor a list of messages"),
    "token-ids": (Dataset.from_dict({"prompt": [[1, 2]]}), "row 0 holds 1, which is not a message"),
    "no-messages": (with_row(GOOD, []), "row 4 has no message"),
    "null-messages": (with_row(GOOD, None), "row 4 is None"),
    "null-message": (with_row(GOOD, [*GOOD, None]), "row 4 holds None, which is not a message"),
    "no-role": (with_row(GOOD, [{"role": None, "content": "Count."}]), "row 4 holds .*which is not a message"),
    "no-content": (with_row(GOOD, [*GOOD, {"role": "user", "content": None}]), "row 4 holds .*has no 'content'"),
    "other-names": (Dataset.from_dict({"prompt": [[{"from": "user", "value": "a"}]]}), "row 0 .* a 'role' and a"),
    "image": (with_row(SEVERAL, PICTURE), r"row 4 holds a message with \['image'\]; DUET trains on text"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("which", ["train_dataset", "eval_dataset", "several"])
def test_a_row_that_is_no_prompt_is_named_before_a_model_is_loaded(tmp_path, monkeypatch, name, which):
    monkeypatch.setattr(data_checks, "_TABLE_ROWS", 3)  # the row stands in the second part of the column
    data, message = BAD_ROWS[name]
    arguments = {"train_dataset": {"data": data}, "eval_dataset": {"eval_dataset": data}}.get(which)
    arguments = arguments or {"eval_dataset": {"easy": prompts(), "hard": data}}
    where = {"train_dataset": "The data set", "eval_dataset": "The evaluation set"}.get(which)
    where = where or r"The evaluation set\['hard'\]"
    with pytest.raises(ValueError, match=f"^{where}: the prompt of {message}.*Filter or correct it"):
        build(tmp_path, **arguments)


def test_rows_are_counted_in_the_data_set_as_it_was_given(tmp_path):
    rows = [None if number == 7 else f"Say {number}" for number in range(20)]
    data = Dataset.from_dict({"prompt": rows}).select([0, 3, 7, 9] * 5)
    with pytest.raises(ValueError, match="the prompt of row 2 is None"):
        build(tmp_path, data)
    with pytest.raises(ValueError, match="the prompt of row 1 is None"):
        build(tmp_path, data.sort("prompt").select([5, 19]))


def test_a_call_of_a_tool_needs_no_content(tmp_path):
    call = [{"role": "assistant", "content": None, "tool_calls": ["add(1, 2)"]}]
    with pytest.raises(OSError):  # there is no such model
        build(tmp_path, Dataset.from_dict({"prompt": [call] * 8}))


def without_the_sixth(batch):
    pairs = zip(batch["prompt"], batch["level"], strict=True)
    return batch | {"prompt": [None if level == 5 else text for text, level in pairs]}


@pytest.mark.parametrize("stored", ["stream", "transform"])
def test_a_row_of_a_stream_is_named_when_it_comes(tiny_path, tmp_path, stored):
    rows = [{"prompt": f"Say {number} ", "level": number} for number in range(32)]
    if stored == "stream":
        rows[9]["prompt"] = ""
        data = IterableDataset.from_generator(lambda: iter(rows))
        message = r"Prompt 1 of generation step 2 is empty. The row is \{'prompt': '', 'level': 9\}"
    else:
        data = Dataset.from_list(rows).with_transform(without_the_sixth)
        message = (
            r"Prompt 5 of generation step 1 is None, neither text nor a list of messages. The row is .*'level': 5"
        )
    trainer = duet_trainer(tiny_path, tmp_path, data=data, shuffle_dataset=False)
    with pytest.raises(ValueError, match=message):
        trainer.train()


# ---- Ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "c", None, "e", "f"], "prompt_id_column='name' is None in row 3 of the data set. Give every row"),
        ([0.0, 1.0, 2.0, 3.0, float("nan"), 5.0], "prompt_id_column='name' is nan in row 4"),
        (["a"] * 6, "prompt_id_column='name' is 'a' in all 6 rows of the data set, so that all prompts would share"),
    ],
)
def test_an_id_that_identifies_nothing_is_refused(tmp_path, monkeypatch, ids, message):
    monkeypatch.setattr(data_checks, "_TABLE_ROWS", 2)
    data = Dataset.from_dict({"prompt": list("abcdef"), "name": ids})
    with pytest.raises(ValueError, match=message):
        build(tmp_path, data, overrides={"prompt_id_column": "name"})


@pytest.mark.parametrize(("texts", "ids"), [(list("abcdef"), [0, 0, 0, 1, 1, 1]), (["a"] * 6, ["one"] * 6)])
def test_prompts_may_share_an_id(tmp_path, texts, ids):
    with pytest.raises(OSError):  # there is no such model
        build(tmp_path, Dataset.from_dict({"prompt": texts, "name": ids}), overrides={"prompt_id_column": "name"})


def test_a_stream_without_an_id_is_named_when_it_comes(tiny_path, tmp_path):
    rows = [{"prompt": f"Say {number} ", "name": None if number == 2 else str(number)} for number in range(8)]
    data = IterableDataset.from_generator(lambda: iter(rows))
    trainer = duet_trainer(tiny_path, tmp_path, data=data, prompt_id_column="name", shuffle_dataset=False)
    with pytest.raises(ValueError, match="Prompt 2 of generation step 1 has no name, which identifies it"):
        trainer.train()


# ---- Columns of reward functions ----------------------------------------------------------------------------------


def by_gold(completions, gold, **columns):
    return [float(gold in text) for text in completions]


class ByGold:
    def __call__(self, completions, *, gold, weight=1.0, **columns):
        return by_gold(completions, gold)


async def later(completions, gold):
    return by_gold(completions, gold)


@pytest.mark.parametrize("reward", [by_gold, ByGold(), later, partial(by_gold, scale=2.0)])
@pytest.mark.parametrize("which", ["train_dataset", "eval_dataset"])
def test_a_column_that_a_reward_function_needs_is_missed_at_once(tmp_path, reward, which):
    full = prompts().add_column("gold", ["4"] * len(prompts()))
    data, evaluation = (prompts(), full) if which == "train_dataset" else (full, prompts())
    name = {by_gold: "by_gold", later: "later"}.get(reward, type(reward).__name__)
    message = f"The reward function {name} needs the argument 'gold', and {which} has no such column, only .*'level'"
    with pytest.raises(ValueError, match=message):
        build(tmp_path, data, rewards=[count_fours, reward], eval_dataset=evaluation)


@pytest.mark.parametrize(
    "reward",
    [
        count_fours,
        len,  # a function of C
        lambda prompts, completions, completion_ids, level, trainer_state, log_metric, **columns: [],
        partial(by_gold, gold="4"),
        ChoiceVerifier(),
        "some/reward-model",
    ],
)
def test_what_every_reward_function_gets_is_no_column(tmp_path, reward):
    with pytest.raises(OSError):  # there is no such model
        build(tmp_path, prompts().add_column("answer", ["4"] * len(prompts())), rewards=reward)


def test_the_prompt_is_passed_under_its_plural_alone(tmp_path):
    with pytest.raises(ValueError, match="needs the argument 'prompt', and train_dataset has no such column"):
        build(tmp_path, rewards=lambda completions, prompt: [])
