# SPDX-License-Identifier: Apache-2.0
"""`duet-trl check`: can this machine train with DUET, and on which device?

Versions are compared with what this package requires. Then two steps of a policy of a few thousand parameters, made on
the spot, run with DUET on each engine that is installed, each in its own process. The trainer itself reads every stop
back from the token ids, so a run that succeeds had the gate inside its engine.
"""

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from . import __version__

DISTRIBUTION = "duet-trl"
EXTRAS = {
    "vllm": "generation is slow without it",
    "peft": "for LoRA",
    "math": "for the math verifier",
    "report": "for tables and figures",
}
"""Extras whose libraries are checked, and their purpose."""

OK, NOTE, FAILED = "ok", "note", "FAILED"
TAIL_LINES = 12
"""Lines of a failed training that are shown."""

Finding = tuple[str, str, str]
"""`OK`, `NOTE` (training works, but) or `FAILED`; what was found; what to do about it."""


def add_command(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "check",
        help="versions, GPU, engines and the gate inside them, in a minute or two",
        description="Checks whether this machine can train with DUET, and shows what to do where it cannot.",
    )
    command.set_defaults(run=check)
    command.add_argument("--fast", action="store_true", help="train nothing: versions and devices only")


def check(options: argparse.Namespace) -> int:
    """Run the command; exit status 1 if anything failed."""
    began, failed = time.perf_counter(), False
    for state, what, remedy in _findings(options.fast):
        failed |= state == FAILED
        sys.stdout.write(f"{state:8}{what}\n" + (f"{'':8}{remedy}\n" if remedy else ""))
        sys.stdout.flush()
    sys.stdout.write(f"{'something FAILED' if failed else 'nothing failed'}; {time.perf_counter() - began:.0f} s\n")
    return int(failed)


def _findings(fast: bool) -> Iterator[Finding]:
    yield OK, f"duet-trl {__version__}, Python {platform.python_version()}, {platform.platform()}", ""
    yield from _requirements()
    yield _device()
    yield _sandbox()
    if not fast:
        yield from _trainings()


def _requirements() -> Iterator[Finding]:
    """Required versions against installed ones; one line for all that match."""
    from packaging.requirements import Requirement

    from .report.environment import versions

    try:
        asked = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        yield FAILED, "duet-trl is imported but not installed", "pip install -e . in its folder"
        return
    fitting, installed = [], versions(*(one.name for one in asked))
    for one in asked:
        found, remedy = installed.get(one.name), f"pip install '{one.name}{one.specifier}'"
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            extra = next((name for name in EXTRAS if one.marker.evaluate({"extra": name})), None)
            if extra is None:
                continue
            if found is None:
                yield NOTE, f"{one.name} is not installed: {EXTRAS[extra]}", f"pip install '{DISTRIBUTION}[{extra}]'"
                continue
        if found is not None and one.specifier.contains(found, prereleases=True):
            fitting.append(f"{one.name} {found}")
        else:
            yield (
                FAILED,
                f"{one.name} {found or 'is not installed'} {'is outside ' * bool(found)}{one.specifier}",
                remedy,
            )
    yield OK, ", ".join(dict.fromkeys(fitting)), ""


def _device() -> Finding:
    """Where training would run."""
    import torch

    from .report.environment import multiplies_bf16

    gpu = torch.cuda.is_available()
    bf16 = multiplies_bf16(gpu)
    if not gpu:
        what = f"PyTorch {torch.__version__} sees no GPU; {len(os.sched_getaffinity(0))} cores"
        precision = "" if bf16 else ", bf16=False"
        return NOTE, what, f"train with use_cpu=True{precision}, or install PyTorch for CUDA"
    what = f"{torch.cuda.device_count()} of {torch.cuda.get_device_name()}"
    if not bf16:
        return NOTE, f"{what}, without bf16", "train with bf16=False, fp16=True"
    return OK, what, ""


def _sandbox() -> Finding:
    """How programs that a policy wrote would be isolated."""
    from .rewards.sandbox import Sandbox, SandboxError

    try:
        return OK, f"programs that a policy writes run isolated: {Sandbox(workers=1).isolation}", ""
    except SandboxError as error:
        return NOTE, str(error), "only code_reward needs it"


def _trainings() -> Iterator[Finding]:
    """Two steps on each engine that is installed, each in its own process."""
    from .report.environment import versions

    with tempfile.TemporaryDirectory(prefix="duet_check_") as folder:
        policy = f"{folder}/policy"
        _make_policy(policy)
        for engine in ["transformers", "vllm"] if "vllm" in versions("vllm") else ["transformers"]:
            code = f"from duet_trl.check import train; train({engine!r}, {policy!r}, {f'{folder}/{engine}'!r})"
            command, began = ["timeout", "300", sys.executable, "-c", code], time.perf_counter()
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
            lines = done.stdout.splitlines()
            if done.returncode == 0:
                yield OK, f"{engine}: {lines[-1]}; {time.perf_counter() - began:.0f} s", ""
                continue
            shown = "".join(f"\n{'':8}| {line}" for line in lines[-TAIL_LINES:])
            what = f"{engine}: training ended with exit status {done.returncode}{shown}"
            yield FAILED, what, "docs/troubleshooting.md, or an issue with these lines"


def train(engine: str, policy: str, folder: str) -> None:
    """Two steps with DUET whose rollouts are trimmed after their first box; the last line printed shows how many."""
    import torch
    from datasets import Dataset

    from . import DUETGRPOConfig, DUETGRPOTrainer
    from .report.environment import multiplies_bf16

    cuda = torch.cuda.is_available()
    lengths: dict[str, Any] = {"num_generations": 4, "max_completion_length": 96, "grace_window": 8}
    vllm: dict[str, Any] = {
        "use_vllm": engine == "vllm",
        "vllm_gpu_memory_utilization": 0.1,
        "vllm_max_model_length": 128,
    }
    device: dict[str, Any] = {"use_cpu": not cuda, "bf16": cuda and multiplies_bf16(cuda)}
    quiet: dict[str, Any] = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    size: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 32}
    config = DUETGRPOConfig(output_dir=folder, **size, **lengths, **vllm, **device, **quiet)
    prompts = Dataset.from_dict({"prompt": [f"Count to {number}: " for number in range(16)]})
    trainer = DUETGRPOTrainer(policy, _length, config, prompts)
    trainer.train()
    rates = [entry["duet/trim_rate"] for entry in trainer.state.log_history if "duet/trim_rate" in entry]
    if len(rates) != 2 or not min(rates) > 0:
        raise RuntimeError(f"the gate stopped nothing: share of trimmed rollouts {rates}")
    sys.stdout.write(f"\n2 steps trained, the gate stopped {sum(rates) / 2:.0%} of the rollouts after their answer\n")


def _length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def _make_policy(folder: str) -> None:
    """A model of random weights that writes random bytes and boxed numbers, and its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_tokens([f"\\boxed{{{number}}}" for number in range(32)])
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 64}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id}
    # More rows than tokens, as published models have them.
    config = Qwen3Config(vocab_size=320, dtype="float32", **sizes, **heads, **ends)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
