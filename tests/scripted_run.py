# SPDX-License-Identifier: Apache-2.0
"""One process of a run on scripted rollouts, which writes what it saw; started by test_distributed.py.

A rollout is a function of its prompt, its round and its number among all rollouts of the round, whatever process it is
on, and goes through the gate of its request. So runs on any number of processes must plan, cut and train alike.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerate.state
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.engine import Completion, Policy, Request, Sampling
from duet_trl.gate import thresholds
from duet_trl.gate.streaming import StreamingGate
from duet_trl.rollouts import NO_GATE
from recipes.tiny_math.policy import CHECKPOINT
from tests.processes import report
from tests.runs import abort_early, grouped, settings

NUM_PROMPTS = 24
GATE = {"grace_window": 8, "budget_fraction": 0.9}


class ScriptedEngine:
    """Rollouts that do not depend on the policy; built by the trainer."""

    def __init__(self, policy: Policy) -> None:
        tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
        self.policy = policy
        self.answer = tokenizer("\\boxed{4}").input_ids
        self.fillers = tokenizer("0123456789").input_ids
        self.state = accelerate.state.PartialState()
        self.interleaved = True
        self.round = 0  # over all steps

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See [`~duet_trl.engines.engine.Engine.generate`]."""
        self.round += 1
        return [self._rollout(request, self._global_number(request, len(requests))) for request in requests]

    def sync_weights(self) -> None:
        """Walks over all weights, as an engine with weights of its own does: gathering them is a collective."""
        for _name, weight in self.policy.weights():
            assert not isinstance(weight, DTensor)

    def sample(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        """Nothing samples here."""
        raise NotImplementedError

    def _global_number(self, request: Request, num_own: int) -> int:
        process, processes = self.state.process_index, self.state.num_processes
        return process + request.number * processes if self.interleaved else process * num_own + request.number

    def _rollout(self, request: Request, number: int) -> Completion:
        script = self._script(sum(request.prompt_ids) * 7919 + number * 104729 + self.round * 1299709)
        script = script[len(request.prefix) :][: request.new_tokens]
        finish = "length" if len(script) == request.new_tokens else "other"
        finish = finish if {*script[-1:]}.isdisjoint(self.policy.eos_ids) else "eos"
        whole = Completion(script, finish, number=request.number)
        if request.gate is None:
            return whole
        gate = StreamingGate(1, [self.policy.gate.automaton])
        gate.admit(0, request.gate, request.keep, prefix=request.prefix, in_thought=request.in_thought)
        slot = torch.zeros(1, dtype=torch.int64).numpy()
        for length, token in enumerate(script):
            if gate.stops(slot)[0]:
                return Completion(script[:length], "gate", number=request.number)
            gate.step(slot, slot + token)
        return whole

    def _script(self, number: int) -> list[int]:
        """Digits, from somewhere on an answer (not in every rollout), digits again, and an EOS."""
        random = torch.Generator().manual_seed(number)
        before, behind, kind = (int(torch.randint(high, (1,), generator=random)) for high in (40, 24, 4))
        digits = torch.randint(10, (before + behind,), generator=random).tolist()
        ids = [self.fillers[digit] for digit in digits]
        return [*ids[:before], *(self.answer if kind else []), *ids[before:], self.policy.eos_ids[0]]


def reward(completions: list[str], **columns: Any) -> list[float]:
    """A reward that differs between rollouts."""
    return [text.count("4") - 0.05 * text.count("7") + ("boxed" in text) for text in completions]


def allow_fsdp_on_cpu() -> None:
    """accelerate shards over several GPUs; several CPU processes it replicates, whatever it was asked for."""
    build = accelerate.state.AcceleratorState.__init__

    def __init__(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        build(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            accelerate.state.PartialState._shared_state["distributed_type"] = self.distributed_type

    accelerate.state.AcceleratorState.__init__ = __init__


def sharding(model: torch.nn.Module, accelerator: Accelerator) -> dict[str, Any]:
    """How the parameters of a model lie on the processes."""
    parameters = list(model.parameters())
    sharded = [p for p in parameters if isinstance(p, DTensor) and any(place.is_shard() for place in p.placements)]
    return {
        "type": str(accelerator.distributed_type).removeprefix("DistributedType."),
        "parameters": len(parameters),
        "sharded": len(sharded),
        "local_elements": sum(p.to_local().numel() for p in sharded),
        "elements": sum(p.numel() for p in parameters),
    }


def build(output_dir: Path, scripted: bool = True, **options: Any) -> DUETGRPOTrainer:
    """A trainer with SGD, whose rollouts are scripted or sampled from the policy."""
    own = {"max_completion_length": 64, "optim": "sgd", "learning_rate": 0.05, **GATE, **options}
    args = DUETGRPOConfig(**settings(output_dir, **grouped(own)))
    data = Dataset.from_dict({"prompt": [f"Compute {i} + {i % 5} = " for i in range(NUM_PROMPTS)]})
    engine = ScriptedEngine if scripted else None
    trainer = DUETGRPOTrainer(str(CHECKPOINT), reward, args=args, train_dataset=data, engine=engine)
    thresholds.QUANTILES = 0.3, 0.35  # every outcome of the gate within 64 tokens
    abort_early(trainer, keep_probability=0.5)
    if scripted:
        trainer.engine.interleaved = trainer.loop.interleaved
    return trainer


def train(trainer: DUETGRPOTrainer) -> dict[str, Any]:
    """Train, and note of each step what must not depend on the number of processes."""
    steps: list[dict[str, Any]] = []
    observe = trainer.loop.observe

    def recorded(step: Any) -> None:
        gates = [job.gate or NO_GATE for job in step.jobs]
        weighted = step.judgement.advantages * step.judgement.weight
        steps.append(
            {
                "prompts": [prompt.key for prompt in step.prompts],
                "counts": step.num_rollouts.tolist(),
                "rounds": step.done.round.tolist(),
                "coins": [int(job.keep) for job in step.jobs],
                "outcomes": step.replay.outcome.tolist(),
                "trimmed": step.replay.trimmed.astype(int).tolist(),
                "lengths": step.replay.length.tolist(),
                "thresholds": [[gate.poll_threshold, gate.abort_threshold] for gate in gates],
                "trained": step.judgement.in_gradient.astype(int).tolist(),
                "divisor": step.num_kept_tokens,
                "rewards": step.done.rewards.tolist(),
                "advantages": weighted.tolist(),
                "sum_logps": torch.from_numpy(step.sum_logps).nan_to_num(0.0).tolist(),
            }
        )
        observe(step)

    trainer.loop.observe = recorded
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"steps": steps, "losses": losses, "sharding": sharding(trainer.model, trainer.accelerator)}


def main() -> None:
    """argv: a folder, and the options of the run as JSON."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    before = load_file(CHECKPOINT / "model.safetensors")
    allow_fsdp_on_cpu()
    trainer = build(folder, **options)
    found = train(trainer)
    weights = {name: weight.detach().clone() for name, weight in trainer.engine.policy.weights()}
    found["moved"] = max((weight - before[name]).abs().max().item() for name, weight in weights.items())
    rank = trainer.accelerator.process_index
    save_file(weights, folder / f"rank{rank}.safetensors")
    report(folder, found)


if __name__ == "__main__":
    main()
