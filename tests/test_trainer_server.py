# SPDX-License-Identifier: Apache-2.0
"""DUETGRPOTrainer on a real vLLM server in another process."""

import gc
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.engine import ServerError
from duet_trl.seams.server_generation import DUETClient
from tests.runs import duet_settings, duet_trainer, logged, prompts
from tests.server_process import ServerProcess

pytestmark = pytest.mark.vllm

PROMPT = list(b"Say 1 ")

# The coin of the first step keeps what the gate would abort, that of the second does not.
ALL_FATES = {"per_device_train_batch_size": 16, "aborts_early": {"cold": (0.1, 0.7), "refit_every": 10}}
"""About 57 rollouts a step that are polled early, so that two steps without a trimmed or an aborted one are rare."""


@pytest.fixture
def on_server(server: ServerProcess, tiny_path: Path, tmp_path: Path, monkeypatch) -> Callable[..., DUETGRPOTrainer]:
    """Makes a trainer of the tiny policy in server mode, with the environment of its server."""

    def build(model: Path = tiny_path, **overrides) -> DUETGRPOTrainer:
        return duet_trainer(
            model, tmp_path, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url, **overrides
        )

    monkeypatch.setenv("DUET_SERVER_TOKEN", server.token)
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(server.weights))
    return build


def weights_of(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(load_file(path / "model.safetensors").items())


def logits_of(path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return lambda tokens: model(tokens).logits


def assert_samples_from_the_policy_it_trains(trainer: DUETGRPOTrainer, num_steps: int) -> None:
    losses = logged(trainer, "loss")
    assert len(losses) == num_steps and all(map(math.isfinite, losses)) and any(losses)
    # From the second step on a server with the weights it started with would be far off at this learning rate.
    differences = logged(trainer, "sampling/sampling_logp_difference/max")
    assert len(differences) == num_steps and max(differences) < 1e-3


def test_every_step_samples_from_the_weights_that_the_last_one_left(
    server, server_weights, on_server, tiny_path, tmp_path, caplog
):
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2}
    trainer = on_server(max_steps=2, learning_rate=1e-2, eval_dataset=prompts(4), **evaluation, **ALL_FATES)
    trainer.train()
    assert_samples_from_the_policy_it_trains(trainer, 2)
    for name in ("duet/abort_rate", "duet/trim_rate", "duet/keep_rate"):
        assert max(logged(trainer, name)) > 0, name
    trainer.save_model(tmp_path / "trained")
    start, trained = logits_of(tiny_path), logits_of(tmp_path / "trained")
    assert server.distance(start, PROMPT) > 0.05

    samples = trainer.sample(["Say 1 ", "Say 2 "], 2, temperature=0.0, max_tokens=10)
    assert [[len(ids) <= 10 for ids in row] for row in samples] == [[True, True]] * 2
    assert all(first == second for first, second in samples)
    assert server.distance(trained, PROMPT) < 1e-3

    # As after a restart between two batches; evaluation has no gate that would refuse.
    server.client.reload_weights(str(server_weights.write(weights_of(tiny_path))))
    assert "was lost" not in caplog.text
    assert trainer.sample(["Say 1 ", "Say 2 "], 2, temperature=0.0, max_tokens=10) == samples
    assert "was lost" in caplog.text and "has not loaded the weights" in caplog.text
    assert server.distance(trained, PROMPT) < 1e-3


def test_plain_grpo_runs_without_the_gate(server_weights, on_server):
    trainer = on_server(max_steps=2, learning_rate=1e-2, method="grpo")
    trainer.train()
    assert_samples_from_the_policy_it_trains(trainer, 2)
    assert max(logged(trainer, "duet/abort_rate")) == max(logged(trainer, "duet/trim_rate")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_every_kind_of_run_trains_on_the_server(server_weights, on_server, lora):
    if lora:
        from peft import LoraConfig

        adapters = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
        overrides = {"learning_rate": 1e-2, "peft_config": adapters, **ALL_FATES}
    else:
        overrides = {"marker": "4...2", "steps_per_generation": 2, "num_iterations": 2, "beta": 0.04}
        overrides |= {"aborts_early": {"cold": (0.1, 0.4)}}  # the five steps have few rollouts
    trainer = on_server(max_steps=5, **overrides)
    trainer.train()
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-3
    assert max(logged(trainer, "duet/abort_rate")) > 0 and max(logged(trainer, "duet/trim_rate")) > 0


def test_a_folder_for_the_weights_must_be_named(on_server, monkeypatch):
    monkeypatch.delenv("DUET_WEIGHTS_DIR")
    with pytest.raises(ValueError, match="Set server_weights_dir, or DUET_WEIGHTS_DIR"):
        on_server()


def test_a_server_of_another_tokenizer_is_found_before_training(on_server, tiny_path, tmp_path):
    other = shutil.copytree(tiny_path, tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["}$}"])  # completes a marker where the server sees an id without text
    tokenizer.save_pretrained(other)
    with pytest.raises(ServerError, match="another tokenizer or vocabulary size"):
        on_server(model=other)


def test_a_prompt_longer_than_the_servers_context_stops_with_its_text(server_weights, on_server, tmp_path):
    long = prompts(8).map(lambda row: {"prompt": row["prompt"] * 60})  # 256 tokens are its context
    trainer = on_server(data=long, method="grpo", max_steps=1)
    with pytest.raises(RuntimeError, match=r"(?s)Training stopped: .*400.*context length.*The state before it is in"):
        trainer.train()
    assert (tmp_path / "checkpoint-0" / "duet_state.json").exists()


# Sending weights


@pytest.fixture
def connect(server: ServerProcess, tmp_path: Path, monkeypatch) -> Callable[[], DUETClient]:
    def connect() -> DUETClient:
        args = DUETGRPOConfig(**duet_settings(tmp_path, use_vllm=True, vllm_mode="server"))
        client = DUETClient(args, server.token, base_url=server.url)
        client.init_communicator("cpu")
        return client

    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(server.weights))
    return connect


def test_one_version_of_the_weights_is_kept_and_none_at_the_end(server_weights, connect, tiny_path):
    client = connect()
    for _ in range(3):
        client.update_named_params([], weights_of(tiny_path))
        version = Path(client.weights)
        run = version.name.split("-")[0]
        assert list(server_weights.folder.glob(f"*{run}*")) == [version]
    del client
    gc.collect()
    assert list(server_weights.folder.glob(f"*{run}*")) == []


def test_other_processes_are_not_left_waiting_where_weights_cannot_be_written(connect, tiny_path, tmp_path):
    # Gathering a parameter is a collective, so that all of them are passed by even if the first cannot be written.
    client, passed = connect(), []
    client.folder.folder = tmp_path / "gone"

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in weights_of(tiny_path):
            passed.append(name)
            yield name, weight

    with pytest.raises(ServerError, match=f"could not be written to {tmp_path}/gone.*two copies of the model"):
        client.update_named_params([], gathered())
    assert passed == [name for name, _ in weights_of(tiny_path)]
