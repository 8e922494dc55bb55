# SPDX-License-Identifier: Apache-2.0
"""Rollouts of the next step are generated while this one trains."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from duet_trl.engines.server import GateServer
from duet_trl.seams.checkpoint import ARRAYS_FILE, STATE_FILE, read_state
from duet_trl.seams.data_checks import prompt_keys
from duet_trl.seams.overlap import Ahead
from duet_trl.seams.resuming import TrainingStopped
from tests.interrupted_run import Interrupt
from tests.overlapped_run import METHODS, NUM_STEPS, build
from tests.processes import ROOT, forked, free_port, process_environment
from tests.runs import duet_trainer, logged, prompts
from tests.server_process import ServerProcess
from tests.tiny import MODEL_VOCAB, UNIGRAM, tiny_tokenizer


@given(st.lists(st.integers(), max_size=12), st.integers(0, 5), st.lists(st.integers(0, 8), max_size=12))
def test_what_is_shown_ahead_is_what_comes(items, first, looks):
    ahead, taken = Ahead(iter(items), first), []
    for look in looks:
        number = first + len(taken) + look
        shown = ahead.item(number)
        assert shown == (items[number - first] if number - first < len(items) else None)
        taken += [item for item in [next(ahead, None)] if item is not None]
    assert [*taken, *ahead] == items


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "none with use_vllm=False, vllm_mode='.*Set use_vllm=True and vllm_mode='server'"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "none with use_vllm=True, vllm_mode='colocate'"),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_importance_sampling_correction": False},
            "nothing corrects for the difference. Set vllm_importance_sampling_correction=True",
        ),
    ],
)
def test_what_cannot_overlap_is_an_error_before_a_model_is_loaded(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        duet_trainer(tmp_path / "absent", tmp_path, overlap=True, **given)


TRAINED = {"overlap": True, "save_strategy": "steps", "save_steps": 1, "audit_log": True, "learning_rate": 1e-3}


@pytest.fixture
def overlapped(server, server_weights, tiny_path, tmp_path, monkeypatch):
    """Makes a trainer whose generation overlaps, in a folder of its own."""
    monkeypatch.setenv("DUET_SERVER_TOKEN", server.token)
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(server.weights))
    on_server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url, **TRAINED}

    def build(folder: str, **overrides):
        return duet_trainer(tiny_path, tmp_path / folder, **on_server, **overrides)

    return build


def decided(folder: Path, step: int) -> pd.DataFrame:
    """The audit log of a step."""
    return pd.read_parquet(folder / "duet_audit" / f"step_{step:06d}.parquet")


def begun(trainer, folder: Path, step: int) -> tuple[list[list[int]], list[float]]:
    """Policy tokens and their summed log-probs of the rollouts that a checkpoint holds for the next step."""
    state = read_state(folder / f"checkpoint-{step}", trainer.checkpoints._identity)["begun"]
    ends = np.cumsum(state["lengths"])[:-1]
    ids = [part.tolist() for part in np.split(state["token_ids"], ends)]
    sentinel = trainer.engine.setup.sentinel
    return [row[:-1] if row[-1:] == [sentinel] else row for row in ids], [
        part.sum() for part in np.split(state["logprobs"], ends)
    ]


@torch.no_grad()
def summed_logps(model: Path, texts: list[str], completions: list[list[int]]) -> list[float]:
    """Log-prob of each completion under the weights of a folder."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer, found = AutoTokenizer.from_pretrained(model), []
    for text, ids in zip(texts, completions, strict=True):
        prompt = tokenizer(text)["input_ids"]
        logps = policy(torch.tensor([prompt + ids])).logits[0].log_softmax(dim=-1)
        found.append(float(logps[range(len(prompt) - 1, len(prompt) + len(ids) - 1), ids].sum()))
    return found


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "eval_dataset": prompts(4)}


@pytest.mark.vllm
def test_a_step_trains_what_the_weights_one_update_before_it_wrote(overlapped, tiny_path, tmp_path, caplog):
    check_one_update_behind(overlapped("run", max_steps=3, **EVALUATED), tiny_path, tmp_path / "run", caplog)


@pytest.mark.vllm
@pytest.mark.slow
def test_so_does_one_whose_gate_is_on_the_streams_of_a_server(tiny_path, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("DUET_SERVER_TOKEN", raising=False)
    mended = "--worker-extension-cls", "duet_trl.engines.cpu_worker.CPUWorker"
    with ServerProcess(tiny_path, tmp_path, *mended, logprobs_mode="raw_logprobs") as process:
        on_server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": process.url, **TRAINED}
        on_server |= {"engine": "openai", "server_weights_dir": str(process.weights), "max_steps": 3}
        trainer = duet_trainer(tiny_path, tmp_path / "run", **on_server, **EVALUATED)
        check_one_update_behind(trainer, tiny_path, tmp_path / "run", caplog)


def check_one_update_behind(trainer, start: Path, folder: Path, caplog) -> None:
    """Train three steps, with an evaluation after each, from the weights in a folder."""
    trainer.train()
    first, *later = logged(trainer, "sampling/sampling_logp_difference/max")
    assert first < 1e-3 < min(later)
    assert "are dropped" not in caplog.text and "was lost" not in caplog.text
    texts = dict(zip(prompt_keys(list(trainer.train_dataset), None), trainer.train_dataset["prompt"], strict=True))
    for step, weights in ((1, start), (2, folder / "checkpoint-1")):
        completions, logprobs = begun(trainer, folder, step)
        asked = [texts[key] for key in decided(folder, step + 1)["prompt"]]
        assert summed_logps(weights, asked, completions) == pytest.approx(logprobs, abs=2e-2)
    # The last step begins nothing.
    assert "begun" in (folder / "checkpoint-3" / STATE_FILE).read_text()
    assert not trainer.engine.begun and trainer.engine.begun_state() == {}


@pytest.mark.vllm
def test_a_resumed_run_trains_the_rollouts_that_were_begun(overlapped, tmp_path):
    overlapped("whole", max_steps=3).train()
    resumed = overlapped("resumed", max_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    one, other = (decided(tmp_path / folder, 2) for folder in ("whole", "resumed"))
    pd.testing.assert_frame_equal(one, other, rtol=1e-4)


# Interrupts and lost processes, on a server whose rollouts are a function of the weights


class Peer:
    """A `WeightServer` in a process of its own, which can be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.client = GateServer(f"http://127.0.0.1:{self.port}")
        row, tokenizer = np.full(MODEL_VOCAB, 1e-9), tiny_tokenizer()
        for text, probability in UNIGRAM.items():
            row[tokenizer(text).input_ids[0]] += probability
        row[tokenizer.eos_token_id] += 0.03  # so that some rollouts end before their limit
        np.save(folder / "tokens.npy", row / row.sum())

    def start(self, hold: int = 0) -> None:
        """Start it, and wait until it answers; with `hold` it never ends the streams of those weights."""
        script = ROOT / "tests" / "weight_server.py"
        with (self.folder / "server.log").open("a") as log:
            command = [sys.executable, str(script), str(self.port), str(self.folder / "tokens.npy"), str(hold)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.client.wait(60.0)

    def kill(self) -> None:
        """End it as a machine that fails does."""
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(folder: Path, hold: int = 0) -> Iterator[Peer]:
    """A server that is there, and that is killed in the end."""
    peer = Peer(folder)
    try:
        peer.start(hold)
        yield peer
    finally:
        peer.kill()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """One that nobody kills."""
    with serving(tmp_path_factory.mktemp("peer")) as peer:
        yield peer


def planned(trainer) -> dict[int, tuple]:
    """Filled while a trainer trains: prompts and jobs, with gates and coins, of each step that it observes."""
    plans, observe = {}, trainer.loop.observe

    def observed(step):
        plans[step.prompts.step] = step.prompts.keys, step.jobs
        observe(step)

    trainer.loop.observe = observed
    return plans


@pytest.fixture(scope="module")
def whole(peer: Peer, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """The plans and the folder of a run of a method that nothing disturbs."""
    found = {}

    def whole(method: str) -> tuple[dict[int, tuple], Path]:
        if method not in found:
            folder = tmp_path_factory.mktemp(method)
            trainer = build(tiny_path, folder, peer.client.base_url, method)
            plans = planned(trainer)
            trainer.train()
            assert [*plans] == [*range(1, NUM_STEPS + 1)]
            found[method] = plans, folder
        return found[method]

    return whole


def check_same_end(folder: Path, other: Path, first: int) -> None:
    """Two runs have the same rollouts from a step on, and end with the same weights and states."""
    for step in range(first, NUM_STEPS + 1):
        pd.testing.assert_frame_equal(decided(folder, step), decided(other, step))
    for name in (STATE_FILE, ARRAYS_FILE, "model.safetensors"):
        one, two = ((path / f"checkpoint-{NUM_STEPS}" / name).read_bytes() for path in (folder, other))
        assert one == two, name


@pytest.mark.vllm
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_interrupted_in_a_step_ends_as_one_that_is_not(peer, whole, tiny_path, tmp_path, method):
    plans, folder = whole(method)
    interrupt = Interrupt(signal.SIGINT, at="1")
    with pytest.raises(KeyboardInterrupt):
        build(tiny_path, tmp_path, peer.client.base_url, method, callbacks=[interrupt]).train()
    resumed = build(tiny_path, tmp_path, peer.client.base_url, method)
    again = planned(resumed)
    resumed.train(resume_from_checkpoint=True)
    assert again == {step: plans[step] for step in range(3, NUM_STEPS + 1)}
    check_same_end(tmp_path, folder, first=1)


@pytest.mark.vllm
def test_a_run_whose_trainer_is_killed_in_a_step_ends_as_one_that_is_not(peer, whole, tiny_path, tmp_path):
    plans, folder = whole("duet")
    script, url = str(ROOT / "tests" / "overlapped_run.py"), peer.client.base_url
    killed = forked([script, str(tiny_path), str(tmp_path), url, "2"], env=process_environment())
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    resumed = build(tiny_path, tmp_path, url, "duet")
    again = planned(resumed)
    resumed.train(resume_from_checkpoint=True)
    assert again == {step: plans[step] for step in range(2, NUM_STEPS + 1)}
    check_same_end(tmp_path, folder, first=1)


class Strike(TrainerCallback):
    """Kills a server that holds the streams of the next step, then does something."""

    def __init__(self, peer: Peer, then: Callable[[], None]) -> None:
        self.peer, self.then = peer, then

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.peer.client._ask("GET", "/held", seconds=60.0)
            self.peer.kill()
            self.then()


@pytest.mark.vllm
@pytest.mark.parametrize("restarted", [True, False])
def test_a_step_whose_server_is_killed_is_generated_again_by_the_same_plan(
    whole, tiny_path, tmp_path, caplog, restarted
):
    plans, folder = whole("duet")
    with serving(tmp_path, hold=2) as peer:  # the weights behind step 1, of which the rollouts of step 3 are
        run = tiny_path, tmp_path, peer.client.base_url, "duet"
        strike = Strike(peer, peer.start if restarted else lambda: None)
        trainer = build(*run, callbacks=[strike], max_steps=3, vllm_server_timeout=60 if restarted else 1)
        again = planned(trainer)
        if restarted:
            trainer.train()
        else:
            with pytest.raises(TrainingStopped, match=f"no healthy vLLM server.* before it is in {tmp_path}/check"):
                trainer.train()
            assert [*again] == [1, 2]
            peer.start()
            trainer = build(*run, max_steps=3)
            rest = planned(trainer)
            trainer.train(resume_from_checkpoint=True)
            again |= rest
    assert caplog.text.count("The vLLM server was lost: ") == 1
    assert again == {step: plans[step] for step in (1, 2, 3)}
    for step in (1, 2):
        pd.testing.assert_frame_equal(decided(tmp_path, step), decided(folder, step))
    # Other rollouts, of the weights behind step 2.
    assert decided(tmp_path, 3)["length"].tolist() != decided(folder, 3)["length"].tolist()
