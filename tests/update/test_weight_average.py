# SPDX-License-Identifier: Apache-2.0
"""The average of weights: its closed form, and what a run trains, shows, saves and resumes with it."""

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerCallback

from duet_trl import DUETGRPOConfig
from duet_trl.update.weight_average import WeightAverage
from tests.runs import duet_trainer, prompts

DECAY = 0.6
FILE = "duet_average_0.safetensors"


def closed_form(weights: torch.Tensor, decay: float) -> torch.Tensor:
    """Weights of a sum over updates, (T, ...): the last has `share`, and all before are multiplied by the rest."""
    shares = [max(1 - decay, 1 / count) for count in range(1, len(weights) + 1)]
    factors = [
        share * torch.tensor([1 - later for later in shares[place + 1 :]], dtype=torch.float64).prod()
        for place, share in enumerate(shares)
    ]
    assert sum(factors) == pytest.approx(1.0)
    return sum(factor * one for factor, one in zip(factors, weights.double(), strict=True))


class Course(TrainerCallback):
    """The trained weights after every optimizer step."""

    def __init__(self):
        self.weights = []

    def on_step_end(self, args, state, control, model=None, **_):
        self.weights.append(flat(model))


def flat(model) -> torch.Tensor:
    return torch.cat([one.detach().flatten().clone() for one in model.parameters() if one.requires_grad])


def trained(tiny_path, folder, **options):
    """A run, and its weights after every optimizer step, (T, N)."""
    course = Course()
    options = {"max_steps": 5, "ema_decay": DECAY, "callbacks": [course], **options}
    trainer = duet_trainer(tiny_path, folder, **options)
    trainer.train()
    return trainer, torch.stack(course.weights)


def test_the_average_is_a_mean_at_first_and_forgets_by_its_decay_then():
    weights = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(1))
    average = WeightAverage(0.75)
    for count, one in enumerate(weights, start=1):
        average.add([one, one[0]])
        expected = closed_form(weights[:count], 0.75)
        torch.testing.assert_close(average.tensors[0].double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(average.tensors[1].double(), expected[0], rtol=1e-5, atol=1e-6)
        if count <= 4:
            torch.testing.assert_close(average.tensors[0], weights[:count].mean(dim=0))
    assert average.count == 12


def test_half_precision_weights_have_an_average_that_small_steps_move():
    start, step = 1.0, 2**-7  # a step of bfloat16 at 1; a hundredth of it would be lost there
    average = WeightAverage(0.99)
    for _ in range(200):
        average.add([torch.full((2,), start, dtype=torch.bfloat16)])
    average.add([torch.full((2,), start + step, dtype=torch.bfloat16)])
    assert average.tensors[0].dtype == torch.float32
    assert average.tensors[0].tolist() == pytest.approx([start + 0.01 * step] * 2)
    weights = [torch.zeros(2, dtype=torch.bfloat16)]
    average.copy_to(weights)
    assert weights[0].tolist() == [1.0, 1.0]


def test_a_run_trains_the_last_weights_and_shows_and_saves_their_average(tiny_path, tmp_path):
    evaluated = {"eval_strategy": "steps", "eval_steps": 2, "eval_dataset": prompts(8)}
    _, alone = trained(tiny_path, tmp_path / "alone", ema_decay=None, **evaluated)
    trainer, course = trained(tiny_path, tmp_path / "averaged", **evaluated)
    assert torch.equal(course, alone)  # the average changes nothing in training
    assert torch.equal(flat(trainer.model), course[-1])
    expected = closed_form(course, DECAY)
    assert (expected - course[-1]).abs().max() > 2e-4
    with trainer.averaged_weights():
        torch.testing.assert_close(flat(trainer.model).double(), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(flat(trainer.model), course[-1])

    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    torch.testing.assert_close(flat(saved).double(), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(flat(trainer.model), course[-1])
    prompt = "Say 1 "
    ids = torch.tensor([trainer.processing_class(prompt).input_ids])
    ends = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": trainer.eos_token_ids}
    found = trainer.sample([prompt], temperature=0.0, max_tokens=24)[0][0]
    assert found == saved.generate(ids, **ends)[0, ids.size(1) :].tolist()


def test_evaluation_is_of_the_average(tiny_path, tmp_path):
    held_out, seen = prompts(8), []

    def rewards(completions, **kwargs):
        seen.append(flat(trainer.model))
        return [float(len(text)) for text in completions]

    trainer = duet_trainer(tiny_path, tmp_path, max_steps=3, ema_decay=DECAY, rewards=rewards, eval_dataset=held_out)
    course = Course()
    trainer.add_callback(course)
    trainer.train()
    for scored, weights in zip(seen[1:], course.weights, strict=False):
        assert torch.equal(scored, weights)  # rollouts come from the last weights
    seen.clear()
    trainer.evaluate()
    expected = closed_form(torch.stack(course.weights), DECAY)
    for scored in seen:
        torch.testing.assert_close(scored.double(), expected, rtol=1e-6, atol=1e-7)
    assert seen and torch.equal(flat(trainer.model), course.weights[-1])


def test_before_the_first_update_there_is_nothing_to_average(tiny_path, tmp_path):
    trainer = duet_trainer(tiny_path, tmp_path, ema_decay=DECAY)
    before = flat(trainer.model)
    with trainer.averaged_weights():
        assert torch.equal(flat(trainer.model), before)


class Plugin:
    """Of accelerate's `DeepSpeedPlugin` what transformers calls: the package itself is not installed here."""

    def set_mixed_precision(self, _: str) -> None: ...

    def set_deepspeed_weakref(self) -> None: ...


@pytest.mark.parametrize("field", [{"ema_decay": DECAY}, {"grad_norm_quantile": 0.5}])
def test_deepspeed_is_refused_also_where_a_configuration_of_accelerate_chose_it(monkeypatch, tmp_path, field):
    DUETGRPOConfig(str(tmp_path), use_cpu=True, **field)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")  # `accelerate launch` sets it
    monkeypatch.setattr("accelerate.utils.DeepSpeedPlugin", Plugin)
    DUETGRPOConfig(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=f"{next(iter(field))}=.* cannot have an effect.*DeepSpeed"):
        DUETGRPOConfig(str(tmp_path), use_cpu=True, **field)


def test_an_error_under_the_average_brings_the_weights_back(tiny_path, tmp_path):
    trainer, course = trained(tiny_path, tmp_path, max_steps=2)
    with pytest.raises(OSError, match="disk"), trainer.averaged_weights():
        raise OSError("disk")
    assert torch.equal(flat(trainer.model), course[-1])


def test_a_checkpoint_has_the_last_weights_and_a_resumed_run_their_average(tiny_path, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3}
    trainer, course = trained(tiny_path, tmp_path, **options)
    checkpoint = tmp_path / "checkpoint-3"
    at_three = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    assert torch.equal(flat(at_three), course[2])
    resumed = duet_trainer(tiny_path, tmp_path, max_steps=5, ema_decay=DECAY)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert (resumed.weight_average.count, trainer.weight_average.count) == (5, 5)
    for one, other in zip(resumed.weight_average.tensors, trainer.weight_average.tensors, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

    with pytest.raises(ValueError, match=f"ema_decay: {DECAY} in the state, None now"):
        duet_trainer(tiny_path, tmp_path, max_steps=5).train(resume_from_checkpoint=str(checkpoint))
    average = load_file(checkpoint / FILE)
    (checkpoint / FILE).unlink()
    with pytest.raises(ValueError, match=f"has no {FILE}, the average of the weights .* as many processes"):
        duet_trainer(tiny_path, tmp_path, max_steps=5, ema_decay=DECAY).train(resume_from_checkpoint=str(checkpoint))
    half = duet_trainer(tiny_path, tmp_path, max_steps=5, ema_decay=DECAY)
    half.weight_average.count = 3
    half.weight_average.tensors = [one[:1] for one in average.values()]
    half._write_average(half.weight_average, checkpoint / FILE)
    with pytest.raises(ValueError, match="other weights or of other shards than this process has"):
        half.train(resume_from_checkpoint=str(checkpoint))


def test_of_a_model_with_adapters_these_are_averaged(tiny_path, tmp_path):
    adapters = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    trainer, course = trained(tiny_path, tmp_path, peft_config=adapters, learning_rate=1e-2)
    assert sum(one.numel() for one in trainer.weight_average.tensors) == course.shape[1]
    trainer.save_model(str(tmp_path / "saved"))
    saved = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    named = {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}
    expected, found, place = closed_form(course, DECAY), {}, 0
    for name, one in named.items():
        found[name.replace(".default", "")] = expected[place : place + one.numel()].view_as(one)
        place += one.numel()
    assert found.keys() == saved.keys()
    for name, one in saved.items():
        torch.testing.assert_close(one.double(), found[name], rtol=1e-6, atol=1e-7)
