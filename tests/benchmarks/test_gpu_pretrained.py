# SPDX-License-Identifier: Apache-2.0
"""GRPO against duet without vLLM: where lines end, how completions are counted, and that both see the same prompts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.arena.measuring import Limits
from benchmarks.arena.mixed import POOL
from benchmarks.arena.problem import ArenaReward, Problem
from benchmarks.arena.profiles import Size
from benchmarks.arena.records import STOPPED
from benchmarks.arena.tasks import LINE, TASKS
from benchmarks.gpu_parts import pretrained
from benchmarks.gpu_parts.pretrained import COMPARED, HELD_OUT, EngineRuler, Plan, is_sound, line_ends, shares
from tests.tiny import tiny_tokenizer

TASK = TASKS["mixed_135m"]


def test_tokens_that_write_a_newline_end_a_line():
    assert line_ends(tiny_tokenizer(), LINE) == ["\u010a", "\u010a\u010a"]  # as byte-level BPE spells it


def test_lines_of_smollm2_end_at_a_token_of_blanks_only():
    if not TASK.model.is_dir():
        pytest.skip("there is no SmolLM2; run `make models`")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TASK.model)
    answer, end = tokenizer("\\boxed{42}").input_ids, tokenizer("\n").input_ids
    assert tokenizer("\\boxed{42}\n").input_ids == answer + end
    ends = line_ends(tokenizer, LINE)
    assert len(ends) == 31 and tokenizer.convert_tokens_to_ids(ends[:1]) == end
    assert {"\u010a\u010a\u010a", "\u0120\u010a", "\u010a\u0120"} < {*ends}
    assert not "".join(tokenizer.convert_tokens_to_string([token]) for token in ends).strip()


class Scripted:
    """An engine that repeats what it is told, one list of texts a call."""

    def __init__(self, *calls: list[str]) -> None:
        self.tokenizer, self.calls, self.asked = tiny_tokenizer(), list(calls), []

    def sample(self, prompts, sampling) -> list[list[int]]:
        self.asked.append((sampling.temperature, sampling.max_tokens))
        return [self.tokenizer(text).input_ids for text in self.calls.pop(0)]


def test_samples_are_counted_for_their_own_problem():
    problems = [Problem("", "sum", 1, answer, answer.__eq__) for answer in ("4", "2")]
    right = "\\boxed{4}\n", "\\boxed{2}\n"
    engine = Scripted([right[0], "2"], [right[0], right[1]], [right[1], right[1]])
    newline = engine.tokenizer("\n").input_ids
    ruler = EngineRuler(SimpleNamespace(engine=engine, eos_token_ids=newline), engine.tokenizer, TASK, problems)
    found = ruler.serve(STOPPED, Size(2, 2, True))
    assert engine.asked == [(1.0, 48), (1.0, 48), (0.0, 48)]
    assert (found.right, found.greedy) == ([2, 1], [0, 1])
    # "\boxed", "{", "4", "}", newline are five tokens, and "2" alone, which does not end, is one.
    assert shares(found) == {"accuracy": 0.75, "greedy": 0.5, "ended": 0.75, "length": 4.0}


def test_a_run_without_batches_or_with_a_figure_that_is_no_number_is_broken():
    assert is_sound({"batch": 2, "curves": {"loss": [0.1, -0.1], "duet/trim_rate": [None, None]}})
    assert not is_sound({"batch": 0, "curves": {"loss": []}})
    assert not is_sound({"batch": 1, "curves": {"loss": [float("nan")]}})


@pytest.mark.slow
def test_both_train_on_the_same_problems_in_the_same_order(tiny_path, tmp_path, monkeypatch):
    rewarded: list[list[int]] = []

    class Recorded(ArenaReward):
        def __call__(self, completions, index, **columns):
            rewarded.append(index)
            return super().__call__(completions, index, **columns)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrained, "ArenaReward", Recorded)
    payload, plan = {"methods": {}}, Plan(2, Limits((), batches=3), Size(2, 1, True))
    for name in COMPARED:
        pretrained.train(replace(TASK, model=tiny_path), name, plan, 0, payload)
        figures = payload["methods"][name]
        assert figures["batch"] == 3 and is_sound(figures)
        assert figures["after"].keys() == payload["before"].keys()
    problems = [set(index) for index in rewarded]
    assert problems[:3] == problems[3:] and len(set.union(*problems)) == 3 * 2
    assert max(set.union(*problems)) < len(TASK.problems(POOL)) - HELD_OUT
    assert [len(index) for index in rewarded] == [2 * 8] * 3 + [2 * 4] * 3
