# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot work are refused before a model is loaded: the one named here does not exist."""

import numpy as np
import pytest
from datasets import Dataset, IterableDataset
from trl import GRPOConfig

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.engine import Engine
from duet_trl.methods.method import Method
from duet_trl.rewards import ChoiceVerifier
from duet_trl.rollouts import Job, Judgement
from duet_trl.seams.arguments import warn_of_slow_precision
from tests.runs import count_fours, duet_trainer, prompts, settings

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
    message = f"exclude_zero_variance_groups=True cannot have an effect with {name}, where GRPOTrainer"
    with pytest.raises(ValueError, match=message):
        build(tmp_path, overrides={"method": "grpo", "exclude_zero_variance_groups": True}, **arguments)


def test_trls_own_configuration_is_refused(tmp_path):
    with pytest.raises(TypeError, match="args must be a DUETGRPOConfig, got GRPOConfig. It takes all"):
        build(tmp_path, args=GRPOConfig(**settings(tmp_path)))


@pytest.mark.parametrize(
    ("flags", "bf16", "launched", "warned"),
    [
        ("avx512f", True, "no", True),
        ("avx512f", False, "bf16", True),
        ("avx512f", False, "no", False),
        ("avx512f avx512_bf16", True, "no", False),
    ],
)
def test_bf16_in_software_is_warned_of(tmp_path, caplog, monkeypatch, flags, bf16, launched, warned):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    args = DUETGRPOConfig(**settings(tmp_path, bf16=bf16, use_cpu=True))
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags\t\t: fpu {flags}\n")
    warn_of_slow_precision(args, cpuinfo)
    assert caplog.text.count("Set bf16=False") == warned


@pytest.mark.parametrize(
    ("data", "overrides", "error", "message"),
    [
        (Dataset.from_dict({"prompt": ["a"], "image": ["b"]}), {}, ValueError, "DUET trains on text"),
        (prompts(), {"prompt_id_column": "task_id"}, ValueError, "no column 'task_id'"),
        (prompts(), {"audit_log": True, "audit_columns": ["target"]}, ValueError, "no column 'target'"),
        (prompts().rename_column("prompt", "question"), {}, ValueError, "no column 'prompt', only .*'question'"),
        ([{"prompt": "a"}], {}, TypeError, "got list. Dataset.from_list makes one"),
        (
            Dataset.from_dict({"prompt": [[{"role": "user", "content": [WORDS, PICTURE]}]]}).to_iterable_dataset(),
            {},
            ValueError,
            r"holds a message with \['image'\]; DUET trains on text",
        ),
    ],
    ids=[
        "image-column",
        "prompt-id",
        "audit-column",
        "no-prompt",
        "list",
        "streamed-image",
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(tmp_path, data, overrides, error, message):
    with pytest.raises(error, match=message):
        build(tmp_path, data, overrides=overrides)


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


# ---- Methods, engines and reward functions ------------------------------------------------------------------------


class Even(Method):
    """As many rollouts for every prompt; remembers how many steps there were."""

    def __init__(self) -> None:
        self.seen = 0

    def jobs(self, of, done):
        return [] if done is not None else [Job(prompt) for prompt in range(len(of)) for _ in range(4)]

    def judge(self, done):
        return Judgement.of(np.nan_to_num(done.rewards))

    def observe(self, done, judgement, sum_logps):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def changed(**functions):
    """`Even` with other functions."""
    return type("Changed", (Even,), functions)()


class Bare:
    """A method without the base class."""

    jobs, judge, observe = Even.jobs, Even.judge, Even.observe


class Unseeing(Method):
    jobs, judge = Even.jobs, Even.judge


class Forgetful(Method):
    jobs, judge, observe, state_dict, seen = Even.jobs, Even.judge, Even.observe, Even.state_dict, 0


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (Even, TypeError, r"method must be an object, got the class Even. Pass Even\(...\)"),
        ("pods", TypeError, r"got 'pods'. A name goes to DUETGRPOConfig\(method=...\)"),
        (Unseeing(), TypeError, "Unseeing has no observe. A method has jobs, judge and observe"),
        (Bare(), TypeError, "Bare has no setup. Name duet_trl.methods.method.Method as its base"),
        (changed(state_dict=lambda self: None), TypeError, "Changed.state_dict returned None. It must return a dict"),
        (Forgetful(), TypeError, "Forgetful has state_dict and no load_state_dict, so a resumed run would lose it"),
        (
            changed(state_dict=lambda self: {"seen": {1}}),
            TypeError,
            r"Changed.state_dict\(\)\['seen'\] is \{1\} of type set, which a checkpoint cannot hold",
        ),
        (changed(identity={"levels": (1, 2)}), TypeError, r"Changed.identity\['levels'\] is \(1, 2\) of type tuple"),
        (changed(load_state_dict=lambda self, state: state["lost"]), KeyError, "lost"),
        (
            changed(
                state_dict=lambda self: {} if self.seen else {"old": 1},
                load_state_dict=lambda self, state: setattr(self, "seen", 1),
            ),
            ValueError,
            r"Changed.load_state_dict restores \[\] from the state \['old'\]",
        ),
    ],
)
def test_a_method_is_checked_before_a_model_is_loaded(tmp_path, method, error, message):
    with pytest.raises(error, match=message):
        build(tmp_path, overrides={"method": "own"}, method=method)


def test_a_method_knows_the_run_before_its_state_is_asked_for(tmp_path):
    heard = []
    method = changed(
        setup=lambda self, setting: heard.append(setting.num_generations),
        state_dict=lambda self: heard.append("state") or {},
        load_state_dict=lambda self, state: None,
    )
    with pytest.raises(OSError):  # there is no such model
        build(tmp_path, overrides={"method": "own", "num_generations": 2}, method=method)
    assert heard[:2] == [2, "state"]


def test_a_method_that_can_be_resumed_is_not_refused(tmp_path):
    with pytest.raises(OSError):  # there is no such model
        build(tmp_path, overrides={"method": "own"}, method=Even())


class Silent:
    """An engine that lacks a function."""

    def __init__(self, policy):
        pass

    def generate(self, requests):
        return []

    def sample(self, prompts, sampling):
        return []


class Unsynced(Silent, Engine):
    """It inherits the description of `sync_weights`, and nothing that does it."""


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            Silent(None),
            "engine must build an engine from a Policy, got <.*Silent.*>. Pass Silent, or functools.partial",
        ),
        ("vllm", "engine must build an engine from a Policy, got 'vllm'. .*are chosen by use_vllm and vllm_mode"),
        (Silent, "the engine Silent has no sync_weights. An engine has generate, sync_weights and sample"),
        (Unsynced, "the engine Unsynced has no sync_weights"),
    ],
)
def test_an_engine_is_checked_before_a_model_is_loaded(tmp_path, engine, message):
    with pytest.raises(TypeError, match=message):
        build(tmp_path, engine=engine)


@pytest.mark.parametrize("built", [None, "an engine", Silent(None)])
def test_what_a_function_builds_is_checked_too(tiny_path, tmp_path, built):
    with pytest.raises(TypeError, match=f"the engine {type(built).__name__} has no "):
        duet_trainer(tiny_path, tmp_path, engine=lambda policy: built)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (
            ChoiceVerifier,
            r"must be callable, got <class .*ChoiceVerifier.*Pass an object of it, ChoiceVerifier\(...\)",
        ),
        ((count_fours, count_fours), "must be callable, got .* Pass a function, or a list of functions"),
        ([count_fours, None], "must be callable, got None"),
        ([1.0], "must be callable, got 1.0"),
    ],
)
def test_what_cannot_be_called_for_rewards_is_refused(tmp_path, rewards, message):
    with pytest.raises(TypeError, match=f"a reward function {message}"):
        build(tmp_path, rewards=rewards)
