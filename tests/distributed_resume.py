# SPDX-License-Identifier: Apache-2.0
"""One process that generates, saves and resumes, its weights replicated or sharded; started by test_distributed.py."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from duet_trl.seams.backend import _named_weights
from tests.processes import report
from tests.scripted_run import allow_fsdp_on_cpu, build, sharding
from tests.states import plain

STEPS, SAVED, PASSES = 4, 2, 2


def whole(trainer) -> dict[str, torch.Tensor]:
    """All weights by name, gathered."""
    return {name: weight.detach().clone() for name, weight in _named_weights(trainer)}


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two sets of weights."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def generates(folder: Path, options: dict) -> dict:
    """Training on rollouts that the policy itself samples, which end at other lengths on each process."""
    # The policy hardly moves, so that how long its answers are is known.
    steps = {"max_steps": 2, "learning_rate": 1e-5, "lr_scheduler_type": "constant"}
    trainer = build(folder, scripted=False, **steps, **options)
    ids: list[list[list[int]]] = []
    turn = trainer.engine._turn

    def recorded(prompts):
        found = turn(prompts)
        ids.append(found[0])
        return found

    trainer.engine._turn = recorded
    trainer.train()
    texts = ["1 + 1 = ", "So the answer is \\boxed{7}.", "1 + 2 = "]  # behind the second, alone there, comes EOS
    samples = trainer.sample(texts, temperature=0.0, max_tokens=12)
    weights = whole(trainer)
    trainer.save_model(str(folder / "saved"))
    trainer.accelerator.wait_for_everyone()
    saved, greedy = None, []
    if trainer.accelerator.is_main_process:  # FSDP_CPU_RAM_EFFICIENT_LOADING: the others would load no weights
        saved = AutoModelForCausalLM.from_pretrained(folder / "saved", dtype=torch.float32)
        for text in texts:
            prompt = torch.tensor([trainer._tokenizer(text).input_ids])
            ends = {"max_new_tokens": 12, "eos_token_id": trainer.eos_token_ids}
            greedy.append([saved.generate(prompt, do_sample=False, **ends)[0, prompt.size(1) :].tolist()])
    return {
        "longest": [max(len(row) for row in batch) for batch in ids],
        "samples": samples,
        "greedy": greedy,
        "saved": None if saved is None else furthest(weights, dict(saved.named_parameters())),
        "sharding": sharding(trainer.model, trainer.accelerator),
        "state": plain(trainer.loop.state_dict()),
    }


def resumes(folder: Path, options: dict) -> dict:
    """A run, and another that resumes from its checkpoint."""
    options = {
        "optim": "adamw_torch",
        "learning_rate": 1e-3,
        "num_iterations": PASSES,
        "max_steps": PASSES * STEPS,
        "save_steps": PASSES * SAVED,
        **options,
    }
    options |= {"save_strategy": "steps"}
    trainer = build(folder, **options)
    trainer.train()
    uninterrupted, state = whole(trainer), plain(trainer.loop.state_dict())
    resumed = build(folder, **options)
    resumed.engine.round = SAVED  # one round a step
    steps = []
    run = resumed.loop.run

    def recorded(step):
        if not steps:
            steps.append(furthest(whole(resumed), start))
        steps.append(step.prompts.step)
        run(step)

    start = load_file(Path(__file__).parents[1] / "recipes" / "tiny_math" / "checkpoint" / "model.safetensors")
    resumed.loop.run = recorded
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{PASSES * SAVED}"))
    return {
        "steps": steps[1:],
        "weights_were_loaded": steps[0],
        "difference": furthest(whole(resumed), uninterrupted),
        "same_state": plain(resumed.loop.state_dict()) == state,
        "moved": furthest(uninterrupted, start),
    }


def main() -> None:
    folder, options, parts = Path(sys.argv[2]), json.loads(sys.argv[3]), {"generates": generates, "resumes": resumes}
    allow_fsdp_on_cpu()
    found = {name: parts[name](folder / name, options) for name in sys.argv[1].split(",")}
    report(folder, found)


if __name__ == "__main__":
    main()
