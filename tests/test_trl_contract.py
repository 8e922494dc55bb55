# SPDX-License-Identifier: Apache-2.0
"""Every place of TRL that the trainer leans on, pinned: a TRL release that moves one fails here by name."""

import inspect

import pytest
import torch
from transformers import Trainer
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer, utils


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_generate", ["self", "prompts"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_tokenize_prompts", ["self", "prompts"]),
        ("_prepare_inputs", ["self", "generation_batch"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("_save_checkpoint", ["self", "model", "trial"]),
        ("_save_rng_state", ["self", "output_dir"]),
        ("_get_train_sampler", ["self", "dataset"]),
        ("_load_optimizer_and_scheduler", ["self", "checkpoint"]),
        ("training_step", ["self", "model", "inputs", "num_items_in_batch"]),
    ],
)
def test_overridden_methods_keep_their_signature(name, parameters):
    assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == parameters


def test_the_state_of_the_trainer_is_the_last_file_of_a_checkpoint():
    """Its presence says that a checkpoint is whole; all that deletes an older one comes later."""
    source = inspect.getsource(Trainer._save_checkpoint)
    order = ["self.save_model(", "self._save_rng_state(", "self.state.save_to_json(", "rotate_checkpoints("]
    assert [source.count(part) for part in order] == [1] * 4
    assert sorted(order, key=source.index) == order


def test_each_epoch_is_run_by_one_function():
    assert "self._run_epoch(" in inspect.getsource(Trainer._inner_training_loop)


def test_an_order_of_prompts_is_one_draw_from_one_generator():
    sampler = utils.RepeatSampler(range(9), 1, seed=3)
    generator = torch.Generator().manual_seed(3)
    for _epoch in range(2):
        assert list(sampler) == torch.randperm(9, generator=generator).tolist()


def test_single_turn_generation_takes_ids_first():
    parameters = list(inspect.signature(GRPOTrainer._generate_single_turn).parameters)
    assert parameters[:5] == ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"]


def test_generate_returns_what_the_replay_returns():
    source = inspect.getsource(GRPOTrainer._generate)
    names = "prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images"
    assert f"return {names}" in source


def test_log_probabilities_come_first():
    source = inspect.getsource(GRPOTrainer._get_per_token_logps_and_entropies)
    assert "return logps, entropies, aux_loss" in source
    names = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    parameters = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    assert list(parameters)[:8] == [*names, "compute_aux_loss"]


@pytest.mark.parametrize(
    "fragment",
    [
        "loss_mask = completion_mask if tool_mask is None else completion_mask * tool_mask",
        "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()",
        "rewards_per_func = self._calculate_rewards(inputs, prompts, completions, completion_ids_list)",
        'num_generations = self.num_generations if mode == "train" else self.num_generations_eval',
        "is_truncated = torch.tensor([ids[-1] not in eos_and_pad for ids in completion_ids_list], device=device)",
    ],
)
def test_the_replayed_method_still_works_as_the_replay_assumes(fragment):
    assert fragment in inspect.getsource(GRPOTrainer._generate_and_score_completions)


@pytest.mark.parametrize(
    "fragment",
    [
        'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]',
        'normalizer = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes',
        "normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        "per_token_loss = per_token_loss + self.beta * per_token_kl",
    ],
)
def test_the_loss_still_divides_by_the_global_token_count(fragment):
    assert fragment in inspect.getsource(GRPOTrainer._compute_loss)


def test_batches_are_still_generated_once_and_split_evenly():
    source = inspect.getsource(GRPOTrainer._prepare_inputs)
    assert "self._step % generate_every == 0 or self._buffered_inputs is None" in source
    assert "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]" in source
    assert "chunk_size = first_tensor.shape[0] // num_chunks" in inspect.getsource(utils.split_tensor_dict)


def test_prompts_are_repeated_rank_major():
    assert "mini_repeat_count=self.num_generations" in inspect.getsource(GRPOTrainer._get_train_sampler)
    assert "self._train_batch_size * self.args.steps_per_generation" in inspect.getsource(
        GRPOTrainer.get_train_dataloader
    )


def test_the_colocated_engine_is_built_and_called_as_assumed():
    build = inspect.getsource(vllm_generation.VLLMGeneration._init_vllm)
    assert "self.llm = LLM(" in build
    assert 'logprobs_mode="processed_logprobs"' in build
    call = inspect.getsource(vllm_generation.VLLMGeneration.generate)
    assert "self.llm.generate(vllm_prompts, sampling_params=sampling_params, use_tqdm=False)" in call
    assert hasattr(grpo_trainer, "VLLMGeneration")
