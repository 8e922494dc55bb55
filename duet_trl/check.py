# SPDX-License-Identifier: Apache-2.0
"""`duet-trl check`: can this machine train with DUET, and what would it train on?

Versions are compared with what this package asks for. Then two steps of a policy of a few thousand parameters, made on
the spot, run with DUET on each engine that is installed, each in a process of its own. The trainer itself reads every
stop back from the token ids, so a run that ends well had the gate inside its engine.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__

DISTRIBUTION = "duet-trl"
EXTRAS = {
    "vllm": "generation is slow without it",
    "peft": "for LoRA",
    "math": "for the math verifier",
    "report": "for figures and the audit log",
}
"""Extras whose libraries are looked for, and what they are for."""

OK, NOTE, FAILED = "ok", "note", "FAILED"
TIMEOUT_SECONDS = 300.0
TAIL_LINES = 12
"""Of a failed training that are shown."""


@dataclass(frozen=True)
class Finding:
    """One line of the check.

    Attributes:
        state (str): `OK`, `NOTE` (training works, but) or `FAILED`.
        what (str): What was found.
        remedy (str): What to do about it.
    """

    state: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n{'':8}{self.remedy}" if self.remedy else ""
        return f"{self.state:8}{self.what}{remedy}"


def add_command(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "check",
        help="versions, GPU, engines and the gate inside them, in about half a minute",
        description="Says whether this machine can train with DUET, and what to do where it cannot.",
    )
    command.set_defaults(run=check)
    command.add_argument("--fast", action="store_true", help="train nothing: versions and devices only")


def check(options: argparse.Namespace) -> int:
    """Run the command; exit status 1 if anything failed."""
    began, failed = time.perf_counter(), False
    for finding in _findings(options.fast):
        failed |= finding.state == FAILED
        sys.stdout.write(f"{finding}\n")
        sys.stdout.flush()
    verdict = "something FAILED" if failed else "nothing failed"
    sys.stdout.write(f"{verdict}; {time.perf_counter() - began:.0f} s\n")
    return int(failed)


def _findings(fast: bool) -> Iterator[Finding]:
    yield Finding(OK, f"duet-trl {__version__}, Python {platform.python_version()}, {platform.platform()}")
    yield from requirements()
    yield device()
    yield sandbox()
    if not fast:
        yield from trainings()


def requirements() -> Iterator[Finding]:
    """What this package needs, against what is installed; one line for all that fits."""
    from packaging.requirements import Requirement

    from .report.environment import versions

    try:
        asked = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        yield Finding(FAILED, "duet-trl is imported and not installed", "pip install -e . in its folder")
        return
    fitting, installed = [], versions(*(one.name for one in asked))
    for one in asked:
        extra = _extra(one)
        if extra is not None and extra not in EXTRAS:
            continue
        install = f"pip install '{one.name}{one.specifier}'"
        found = installed.get(one.name)
        if found is None and extra is None:
            yield Finding(FAILED, f"{one.name} is not installed", install)
        elif found is None:
            remedy = f"pip install '{DISTRIBUTION}[{extra}]'"
            yield Finding(NOTE, f"{one.name} is not installed: {EXTRAS[extra]}", remedy)
        elif one.specifier.contains(found, prereleases=True):
            fitting.append(f"{one.name} {found}")
        else:
            yield Finding(FAILED, f"{one.name} {found} is outside {one.specifier}", install)
    yield Finding(OK, ", ".join(dict.fromkeys(fitting)))


def _extra(requirement: Any) -> str | None:
    """The extra that asks for a requirement; None: the package itself."""
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return None
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
    return next((name for name in names if requirement.marker.evaluate({"extra": name})), "")


def device() -> Finding:
    """Where training would run."""
    import torch

    if not torch.cuda.is_available():
        what = f"no GPU that PyTorch {torch.__version__} sees; {len(os.sched_getaffinity(0))} cores"
        return Finding(NOTE, what, "train with use_cpu=True, bf16=False, or install PyTorch for CUDA")
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    what = ", ".join(f"{gpu.name} with {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus)
    if not torch.cuda.is_bf16_supported():
        return Finding(NOTE, f"{what}, without bf16", "train with bf16=False, fp16=True")
    return Finding(OK, what)


def sandbox() -> Finding:
    """How programs that a policy wrote would be isolated."""
    from .rewards.sandbox import Sandbox, SandboxError

    try:
        return Finding(OK, f"programs that a policy writes run isolated: {Sandbox(workers=1).isolation}")
    except SandboxError as error:
        return Finding(NOTE, str(error), "only code_reward needs it")


def trainings() -> Iterator[Finding]:
    """Two steps on each engine that is installed, side by side."""
    from .report.environment import versions

    with tempfile.TemporaryDirectory(prefix="duet_check_") as name:
        folder = Path(name)
        _make_policy(folder / "policy")
        engines = ["transformers", "vllm"] if "vllm" in versions("vllm") else ["transformers"]
        runs = [(engine, *_start(engine, folder)) for engine in engines]
        for engine, process, log, began in runs:
            yield _ended(engine, process, log, began)


def _start(engine: str, folder: Path) -> tuple[subprocess.Popen, Path, float]:
    code = f"from duet_trl.check import train; train({engine!r}, {str(folder / 'policy')!r}, {str(folder / engine)!r})"
    log = folder / f"{engine}.log"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=subprocess.STDOUT)
    return process, log, time.perf_counter()


def _ended(engine: str, process: subprocess.Popen, log: Path, began: float) -> Finding:
    try:
        process.wait(TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    lines = log.read_text(errors="replace").splitlines()
    if process.returncode == 0:
        return Finding(OK, f"{engine}: {lines[-1]}; {time.perf_counter() - began:.0f} s")
    why = f"ended with exit status {process.returncode}" if process.returncode >= 0 else "was ended"
    shown = "\n".join(f"{'':8}| {line}" for line in lines[-TAIL_LINES:])
    return Finding(FAILED, f"{engine}: training {why}\n{shown}", "docs/operations.md, or an issue with these lines")


def train(engine: str, policy: str, folder: str) -> None:
    """Two steps with DUET whose rollouts are trimmed behind their first box; the last line printed says how many."""
    import torch
    from datasets import Dataset

    from . import DUETGRPOConfig, DUETGRPOTrainer

    cuda = torch.cuda.is_available()
    config = DUETGRPOConfig(
        output_dir=folder,
        max_steps=2,
        num_generations=4,
        per_device_train_batch_size=32,
        max_completion_length=96,
        grace_window=8,
        use_vllm=engine == "vllm",
        vllm_gpu_memory_utilization=0.1,
        vllm_max_model_length=128,
        use_cpu=not cuda,
        bf16=cuda and torch.cuda.is_bf16_supported(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    prompts = Dataset.from_dict({"prompt": [f"Count to {number}: " for number in range(16)]})
    trainer = DUETGRPOTrainer(policy, _length, config, prompts)
    trainer.train()
    rates = [entry["duet/trim_rate"] for entry in trainer.state.log_history if "duet/trim_rate" in entry]
    if len(rates) != 2 or not min(rates) > 0:
        raise RuntimeError(f"the gate stopped nothing: share of trimmed rollouts {rates}")
    sys.stdout.write(f"\n2 steps trained, the gate stopped {sum(rates) / 2:.0%} of the rollouts behind their answer\n")


def _length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def _make_policy(folder: Path) -> None:
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
    config = Qwen3Config(
        vocab_size=320,  # more rows than tokens, as published models have them
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
