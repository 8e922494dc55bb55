# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/step.py needs to put trainers side by side: recorded rollouts, paused trainers, clocks.

Rollouts are sampled once, without a gate, and replayed to every trainer in place of its engine. A gated trainer gets
each rollout cut where the gate of its step would have stopped it, and the sentinel after it, as an engine returns it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessor, TrainerCallback
from trl import GRPOTrainer

from duet_trl import DUETGRPOTrainer
from duet_trl.engines.engine import Request, TurnEngine
from duet_trl.engines.host_gate import nearly_certain
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.sentinel import find_sentinel
from duet_trl.gate.streaming import GateSetup, StreamingGate

# ---- Rollouts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """One rollout without a gate.

    Attributes:
        ids (list[int]): Tokens, a sampled EOS included, length L.
        certain (np.ndarray): Whether token t + 1 was nearly certain and no EOS, shape (L,), bool.
    """

    ids: list[int]
    certain: np.ndarray


@dataclass(frozen=True)
class Sampling:
    """How rollouts are recorded.

    Attributes:
        rollouts (int): Of each prompt.
        max_tokens (int): Length limit.
        entropy_threshold (float): Of the gate they may be cut by later.
        seed (int): Of the sampling.
        rows (int): Rollouts that are generated at a time.
    """

    rollouts: int
    max_tokens: int
    entropy_threshold: float
    seed: int
    rows: int = 128


class Recording:
    """Rollouts by prompt.

    Args:
        rollouts (dict[tuple[int, ...], list[Rollout]]): By the prompt's token ids.
        stride (int): Each step begins this many rollouts later, so that a prompt does not always bring the same.
    """

    def __init__(self, rollouts: dict[tuple[int, ...], list[Rollout]], stride: int) -> None:
        self.rollouts = rollouts
        self.stride = stride

    def take(self, prompt_ids: Sequence[Sequence[int]], step: int) -> list[Rollout]:
        """One rollout for each row; equal prompts and steps bring equal ones, whoever asks.

        Raises:
            ValueError: If a prompt asks for more rollouts than were recorded.
        """
        seen: Counter = Counter()
        taken = []
        for ids in map(tuple, prompt_ids):
            recorded = self.rollouts[ids]
            if seen[ids] == len(recorded):
                raise ValueError(f"a prompt asks for more than the {len(recorded)} rollouts recorded. Record more.")
            taken.append(recorded[(self.stride * step + seen[ids]) % len(recorded)])
            seen[ids] += 1
        return taken


class _CertaintyRecorder(LogitsProcessor):
    """Forbids the sentinel, as every gated engine does, and notes where the next token is nearly certain."""

    def __init__(self, sentinel: int, eos_ids: Sequence[int], sampling: Sampling) -> None:
        self.sentinel, self.eos_ids = sentinel, torch.tensor([list(eos_ids)])
        self.thresholds = torch.tensor([sampling.entropy_threshold])
        self.certain: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        scores = scores.clone()
        scores[:, self.sentinel] = -torch.inf
        self.certain.append(nearly_certain(scores, self.thresholds, self.eos_ids.expand(len(scores), -1)))
        return scores


@torch.no_grad()
def record(checkpoint: Path, prompts: Sequence[Any], sampling: Sampling, stride: int) -> Recording:
    """Sample rollouts of a saved policy with transformers, at temperature 1 and without a gate.

    Args:
        checkpoint (Path): Folder of model and tokenizer.
        prompts (Sequence[Any]): Texts or conversations, distinct.
        sampling (Sampling): How many, how long.
        stride (int): Of the [`Recording`].
    """
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    eos_ids = np.union1d(tokenizer.eos_token_id, model.generation_config.eos_token_id).tolist()
    sentinel = find_sentinel(tokenizer, model.config.vocab_size, eos_ids)
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=sampling.max_tokens, eos_token_id=eos_ids)
    config.pad_token_id = tokenizer.pad_token_id
    torch.manual_seed(sampling.seed)
    rows = [ids for prompt in prompts for ids in [_prompt_ids(tokenizer, prompt)] * sampling.rollouts]
    recorded: dict[tuple[int, ...], list[Rollout]] = {ids: [] for ids in rows}
    for start in range(0, len(rows), sampling.rows):
        batch = rows[start : start + sampling.rows]
        inputs = tokenizer.pad({"input_ids": [list(ids) for ids in batch]}, return_tensors="pt")
        recorder = _CertaintyRecorder(sentinel, eos_ids, sampling)
        output = model.generate(**inputs, generation_config=config, logits_processor=[recorder])
        generated = output[:, inputs["input_ids"].shape[1] :]
        ended = torch.isin(generated, torch.tensor(eos_ids))
        lengths = torch.where(ended.any(dim=1), ended.int().argmax(dim=1) + 1, generated.shape[1]).tolist()
        certain = torch.stack(recorder.certain, dim=1).numpy()
        for ids, tokens, sure, length in zip(batch, generated.tolist(), certain, lengths, strict=True):
            recorded[ids].append(Rollout(tokens[:length], sure[:length]))
    return Recording(recorded, stride)


def _prompt_ids(tokenizer: Any, prompt: Any) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        prompt = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(prompt)["input_ids"])


def cut(spec: GateSpec, keep: np.ndarray, setup: GateSetup, rollouts: Sequence[Rollout]) -> list[list[int]]:
    """What an engine with this gate would have returned: each rollout up to its forced stop, then the sentinel.

    `keep` (R,) are the coins.
    """
    streaming = StreamingGate(len(rollouts), [setup.automaton])
    for slot, coin in enumerate(keep):
        streaming.admit(slot, spec, bool(coin))
    lengths = np.array([len(rollout.ids) for rollout in rollouts])
    tokens, certain = (np.zeros((len(rollouts), lengths.max(initial=0)), kind) for kind in (np.int64, bool))
    for slot, rollout in enumerate(rollouts):
        tokens[slot, : lengths[slot]], certain[slot, : lengths[slot]] = rollout.ids, rollout.certain
    stopped_at = np.full(len(rollouts), -1)
    for t in range(tokens.shape[1]):
        running = np.flatnonzero((lengths > t) & (stopped_at < 0))
        stops = streaming.stops(running, certain[running, t])
        stopped_at[running[stops]] = t
        running = running[~stops]
        streaming.advance(running, tokens[running, t][None])
    return [
        rollout.ids if end < 0 else [*rollout.ids[:end], setup.sentinel]
        for rollout, end in zip(rollouts, stopped_at, strict=True)
    ]


# ---- Clock ----------------------------------------------------------------------------------------------------------

PHASES = {
    "score": (GRPOTrainer, "_calculate_rewards"),
    "forward": (GRPOTrainer, "_compute_loss"),
    "backward": (Accelerator, "backward"),
    "clip": (Accelerator, "clip_grad_norm_"),
    "optimizer": (AcceleratedOptimizer, "step"),
}
"""Methods whose time is a phase; they are the same objects for every trainer. What is left of a step is its rest."""


@dataclass
class StepRecord:
    """One optimizer step of one trainer. Seconds leave out the replayed generation; a pair is (wall, processor).

    Attributes:
        seconds (tuple[float, float]): The whole step.
        phases (dict[str, tuple[float, float]]): Of it, by phase.
        kept_tokens (int): Divisor of the loss: policy tokens of all rollouts that are in the gradient.
        trained_tokens (int): Policy tokens that had a forward pass.
        computed_tokens (int): Tokens of prompts and completions that had one, padding included.
    """

    seconds: tuple[float, float] = (0.0, 0.0)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    kept_tokens: int = 0
    trained_tokens: int = 0
    computed_tokens: int = 0


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Clock:
    """Notes what the step that runs now takes; only one may run at a time."""

    def __init__(self) -> None:
        self.record = StepRecord()

    def measure(self, advance: Callable[[], None]) -> StepRecord:
        """Record one step, which `advance` runs to its end."""
        self.record, begin = StepRecord(), _now()
        advance()
        whole = [end - start for start, end in zip(begin, _now(), strict=True)]
        generated = self.record.phases.pop("generate", (0.0, 0.0))
        self.record.seconds = tuple(a - b for a, b in zip(whole, generated, strict=True))
        known = np.sum(list(self.record.phases.values()), axis=0)
        self.record.phases["rest"] = tuple((np.array(self.record.seconds) - known).tolist())
        return self.record

    def timed(self, phase: str, method: Callable) -> Callable:
        """The method, with its time added to a phase."""

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = _now()
            result = method(*args, **kwargs)
            before = self.record.phases.get(phase, (0.0, 0.0))
            self.record.phases[phase] = tuple(b + e - s for b, s, e in zip(before, begin, _now(), strict=True))
            return result

        return call

    def counted(self, compute_loss: Callable) -> Callable:
        """`_compute_loss`, with the tokens of its micro-batch counted."""

        def call(trainer: GRPOTrainer, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            self.record.kept_tokens = int(inputs["num_items_in_batch"])
            taught = inputs.get("duet_end")  # ends that no policy drew
            self.record.trained_tokens += int(mask.sum()) - (0 if taught is None else int((taught >= 0).sum()))
            self.record.computed_tokens += inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
            return compute_loss(trainer, model, inputs)

        return call


@contextmanager
def replayed(recording: Recording, clock: Clock) -> Iterator[None]:
    """While active, the recording is every trainer's engine, and the clock sees the phases of its steps."""

    asked: list[Request] = []  # what the next turn of generation is for
    turns = TurnEngine.generate

    def noted(engine: TurnEngine, requests: list[Request]) -> list:
        asked[:] = requests
        return turns(engine, requests)

    def generate(trainer: GRPOTrainer, prompt_ids: list, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        rollouts = recording.take(prompt_ids, trainer.state.global_step)
        if isinstance(trainer, DUETGRPOTrainer) and trainer.method.gated:
            keep = np.array([request.keep for request in asked])
            return cut(asked[0].gate, keep, trainer.engine.setup, rollouts), None  # all of one gate
        return [list(rollout.ids) for rollout in rollouts], None

    with ExitStack() as stack:
        _replace(stack, TurnEngine, "generate", noted)
        _replace(stack, GRPOTrainer, "_generate_single_turn", clock.timed("generate", generate))
        for phase, (owner, name) in PHASES.items():
            method = clock.timed(phase, owner.__dict__[name])
            _replace(stack, owner, name, clock.counted(method) if phase == "forward" else method)
        yield


def _replace(stack: ExitStack, owner: type, name: str, method: Callable) -> None:
    stack.callback(setattr, owner, name, owner.__dict__[name])
    setattr(owner, name, method)


# ---- Trainers that pause --------------------------------------------------------------------------------------------


class Pausing(TrainerCallback):
    """Trains in its own thread and waits at the end of each optimizer step until it is told to continue.

    A step lasts from where the last one ended, so that fetching data and logging are in it. As a context manager it
    ends the training early, however the block is left.

    Args:
        trainer (GRPOTrainer): A trainer that has not trained yet.
    """

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer
        self._go, self._paused = Semaphore(0), Semaphore(0)
        self._leaving = False
        trainer.add_callback(self)
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._training = self._executor.submit(self._train)
        self._training.add_done_callback(lambda training: self._paused.release())

    def advance(self) -> None:
        """Run one optimizer step.

        Raises:
            RuntimeError: If training failed or was over.
        """
        self._go.release()
        self._paused.acquire()
        if self._training.done():
            raise RuntimeError("training ended within a step") from self._training.exception()

    def __enter__(self) -> "Pausing":
        return self

    def __exit__(self, *exception: object) -> None:
        self._leaving = True
        self._go.release()
        self._executor.shutdown()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hand over; what follows of the step belongs to the next."""
        self._paused.release()
        self._go.acquire()
        if self._leaving:
            control.should_training_stop = True

    def _train(self) -> None:
        self._go.acquire()
        if not self._leaving:
            self.trainer.train()
