# SPDX-License-Identifier: Apache-2.0
"""Run by `tests/install_check.py` in an environment that has the wheel and nothing else: import, train, save."""

import importlib
import importlib.metadata
import json
import pkgutil
import sys
from pathlib import Path

import datasets

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


def train(folder: Path) -> None:
    """Two steps of a tiny model on the transformers engine, a checkpoint, and a push that must fail."""
    sys.path.append(str(Path(__file__).parent))
    from tiny import save_tiny

    config = duet_trl.DUETGRPOConfig(
        str(folder / "out"),
        budget_fraction=0.9,
        grace_window=8,
        max_steps=2,
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        max_completion_length=64,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        report_to="none",
    )
    trainer = duet_trl.DUETGRPOTrainer(
        str(save_tiny(folder)),
        lambda completions, **kwargs: [float(text.count("4")) for text in completions],
        config,
        datasets.Dataset.from_dict({"prompt": [f"Say {i} " for i in range(16)]}),
    )
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


def main() -> None:
    """All of it, and the versions that it ran with."""
    here = Path(__file__).resolve().parent
    assert Path(duet_trl.__file__).is_relative_to(sys.prefix), f"not the wheel: {duet_trl.__file__}"
    import_everything(json.loads(sys.argv[1]))
    train(here / f"trained_{Path(sys.prefix).name}")
    installed = sorted((d.name, d.version) for d in importlib.metadata.distributions())
    print(", ".join(f"{name} {version}" for name, version in installed))


if __name__ == "__main__":
    main()
