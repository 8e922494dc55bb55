# SPDX-License-Identifier: Apache-2.0
"""Run by `tests/install_check.py` in an environment that has the wheel and nothing else: import, train, compare."""

import importlib
import importlib.metadata
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import datasets
import torch
import trl

import duet_trl


def import_everything(needs_extra: list[str]) -> None:
    """Import every module, unless it needs an extra whose libraries are missing, and every public name."""
    unimportable = []
    for found in pkgutil.walk_packages(duet_trl.__path__, "duet_trl."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":  # comes with PyTorch's CUDA builds
                unimportable.append(found.name)
            continue
        for name in module.__dict__.get("__all__", ()):
            assert hasattr(module, name), f"{found.name}.{name}"
    assert set(unimportable) <= set(needs_extra), f"cannot be imported: {unimportable}"
    for name in duet_trl.__all__:
        assert hasattr(duet_trl, name), name


def settings(output_dir: Path) -> dict[str, Any]:
    """Two steps on the transformers engine; each adds up four micro-batches, which versions of transformers scale."""
    return {
        "output_dir": str(output_dir),
        "max_steps": 2,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 64,
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1,
        "report_to": "none",
    }


def count_fours(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(text.count("4")) for text in completions]


def prompts() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"prompt": [f"Say {i} " for i in range(16)]})


def train(folder: Path, model: str) -> None:
    """Two steps of a tiny model with DUET, a checkpoint, and a push that must fail."""
    config = duet_trl.DUETGRPOConfig(**settings(folder / "out"), budget_fraction=0.9, grace_window=8)
    trainer = duet_trl.DUETGRPOTrainer(model, count_fours, config, prompts())
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "duet/generated_tokens" in entry]
    assert len(entries) == 2 and all(entry["duet/generated_tokens"] > 0 for entry in entries), entries
    assert (folder / "out" / "checkpoint-2" / "duet_state.json").exists()
    try:
        trainer.push_to_hub()
    except RuntimeError as error:
        assert "ConnectError" in str(error) and "hf auth login" in str(error), error
    else:
        raise AssertionError("a push without a network raised nothing")


def match_grpo(folder: Path, model: str) -> None:
    """The same two steps by `GRPOTrainer` and by the method grpo: the same losses, gradients and weights.

    SGD, so that small differences stay small and a gradient scaled by the wrong number of micro-batches shows.
    """
    trained = []
    for trainer_class, config_class, method in (
        (trl.GRPOTrainer, trl.GRPOConfig, {}),
        (duet_trl.DUETGRPOTrainer, duet_trl.DUETGRPOConfig, {"method": "grpo"}),
    ):
        sgd = {"optim": "sgd", "learning_rate": 0.02, "max_grad_norm": 0.0, "save_strategy": "no"}
        config = config_class(**settings(folder / trainer_class.__name__) | sgd | method)
        trainer = trainer_class(model, count_fours, config, prompts())
        before = weights(trainer)
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "loss" in entry]
        trained.append((weights(trainer), torch.tensor([[step["loss"], step["grad_norm"]] for step in steps])))
        assert (weights(trainer) - before).abs().max() > 1e-3, "nothing was learned"
    (weights_grpo, logged_grpo), (weights_duet, logged_duet) = trained
    # The embedding holds weights of 20, whose float32 neighbours lie 2e-6 apart.
    torch.testing.assert_close(weights_duet, weights_grpo, atol=1e-6, rtol=2e-7)
    torch.testing.assert_close(logged_duet, logged_grpo, atol=1e-6, rtol=1e-5)


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]).clone()


def main() -> None:
    """All of it, and the versions that it ran with."""
    here = Path(__file__).resolve().parent
    assert Path(duet_trl.__file__).is_relative_to(sys.prefix), f"not the wheel: {duet_trl.__file__}"
    import_everything(json.loads(sys.argv[1]))
    sys.path.append(str(here))
    from tiny import save_tiny

    folder = here / f"trained_{Path(sys.prefix).name}"
    model = str(save_tiny(folder))
    train(folder, model)
    match_grpo(folder, model)
    installed = sorted((d.name, d.version) for d in importlib.metadata.distributions())
    print(", ".join(f"{name} {version}" for name, version in installed))


if __name__ == "__main__":
    main()
