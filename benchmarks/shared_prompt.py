# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/shared_prompt.py [--check]: what an update costs where rows of one prompt share its forward pass.

Loss, forward and backward pass of one micro-batch, n random answers of L tokens to a random prompt of P tokens, by
`GRPOTrainer` and by `DUETGRPOTrainer(method="grpo")`, on SmolLM2-135M (`make models`) in float32, in turn in one
process; medians. n is the largest of --rows with which separate rows have at most --most_tokens tokens; where there is
none, the cell is left out. Expected is the ratio of tokens, (P + L) n / (P + n L). Seconds are processor time on a
CPU. Memory is the peak above the memory before, of the process on a CPU and of the device on a GPU.

Needs one core and, on a CPU, some 12 GiB at the default limit; --prompts, --answers and --most_tokens ask for less.
"""

import ctypes
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from benchmarks.common import argument_parser, finish  # noqa: E402
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from recipes.pretrained_models import FOLDER  # noqa: E402
from tests.runs import count_fours, prompts, settings  # noqa: E402

PROMPTS, ANSWERS = (50, 200, 800), (16, 128, 1024)
ONCE = 2000
"""Tokens of separate rows from which on a cell is measured once."""
REACHED, LOST, PAYS = 0.7, 0.9, 1.3
"""Targets: this share of the expected ratio where that is at least `PAYS`, and nowhere less than this ratio."""
GRADIENT = 1e-5
"""Relative difference of gradients in float32 that is rounding."""


def trainers(model: Path, folder: Path, num_rows: int) -> dict[str, Any]:
    """Both, on the same weights, ready for a loss."""
    built: dict[str, Any] = {}
    cpu = not torch.cuda.is_available()
    common = {"per_device_train_batch_size": num_rows, "num_generations": num_rows, "use_cpu": cpu, "beta": 0.0}
    common |= {"model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"}}
    for name, trainer_class, config_class, extra in (
        ("stock", GRPOTrainer, GRPOConfig, {}),
        ("shared", DUETGRPOTrainer, DUETGRPOConfig, {"method": "grpo"}),
    ):
        args = config_class(**settings(folder / name, **common, **extra, gradient_checkpointing=False))
        built[name] = trainer_class(str(model), count_fours, args=args, train_dataset=prompts())
        built[name].current_gradient_accumulation_steps = 1
        built[name].model.train()
    return built


def micro_batch(prompt: int, answer: int, rows: int, vocab_size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """What TRL's loss is given."""
    draws = torch.Generator().manual_seed(prompt + answer)
    shared = torch.randint(vocab_size, (1, prompt), generator=draws).expand(rows, -1)
    answers = torch.randint(vocab_size, (rows, answer), generator=draws)
    batch = {"prompt_ids": shared, "completion_ids": answers, "advantages": torch.linspace(-1.0, 1.5, rows)}
    batch |= {"prompt_mask": torch.ones_like(shared), "completion_mask": torch.ones_like(answers)}
    batch["num_items_in_batch"] = torch.tensor(rows * answer)
    return {name: one.to(device) for name, one in batch.items()}


def update(trainer: Any, batch: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Seconds and peak memory, GiB, of TRL's loss and its gradients; on a CPU seconds of the processor."""
    trainer.model.zero_grad()
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    before, started = _begin(), clock()
    GRPOTrainer._compute_loss(trainer, trainer.model, dict(batch)).backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started, (_peak() - before) / 2**30


def _begin() -> int:
    """Forget the peak of memory; what is in use now, bytes."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would be used again without being counted
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) * 1024


def gradient_difference(one: Any, other: Any) -> float:
    """Of the last updates of two trainers, over all weights, relative to the length of the first."""
    pairs = list(zip(one.model.parameters(), other.model.parameters(), strict=True))
    apart = sum((a.grad.double() - b.grad.double()).square().sum() for a, b in pairs)
    return float((apart / sum(a.grad.double().square().sum() for a, _ in pairs)).sqrt())


def cell(built: dict[str, Any], prompt: int, answer: int, rows: int, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    tokens, packed = (prompt + answer) * rows, prompt + answer * rows
    batch = micro_batch(prompt, answer, rows, built["stock"].model.config.vocab_size, built["stock"].model.device)
    before = built["shared"].sharing.num_shared
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in built}
    for _ in range(repeats if tokens < ONCE else 1):
        for name, trainer in built.items():
            found[name].append(update(trainer, batch))
    seconds, memory = (
        {name: statistics.median(one[part] for one in runs) for name, runs in found.items()} for part in (0, 1)
    )
    return {
        "prompt": prompt,
        "answer": answer,
        "rows": rows,
        "repeats": len(found["stock"]),
        "seconds": seconds,
        "memory_gib": memory,
        "is_shared": built["shared"].sharing.num_shared > before,
        "expected": tokens / packed,
        "ratio": seconds["stock"] / seconds["shared"],
        "gradient_difference": gradient_difference(built["stock"], built["shared"]),
    }


HEADERS = ("P", "L", "n", "shared", "seconds", "stock", "ratio", "expected", "GiB", "stock", "gradients differ by")


def table_row(found: dict[str, Any]) -> list[str]:
    """A cell as the table has it."""
    seconds, memory = found["seconds"], found["memory_gib"]
    return [
        *(str(found[name]) for name in ("prompt", "answer", "rows")),
        "yes" if found["is_shared"] else "no",
        *(f"{seconds[name]:.2f}" for name in ("shared", "stock")),
        *(f"{found[name]:.2f}" for name in ("ratio", "expected")),
        *(f"{memory[name]:.2f}" for name in ("shared", "stock")),
        f"{found['gradient_difference']:.0e}",
    ]


def main() -> int:
    """Measure, print and write the figures."""
    parser = argument_parser(__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS, help="P, tokens")
    parser.add_argument("--answers", type=int, nargs="+", default=ANSWERS, help="L, tokens")
    parser.add_argument("--rows", type=int, nargs="+", default=(8, 4, 2), help="n, answers to a prompt")
    parser.add_argument("--repeats", type=int, default=3, help=f"of cells with fewer than {ONCE} tokens")
    parser.add_argument("--most_tokens", type=int, default=100_000 if torch.cuda.is_available() else 4000)
    parser.add_argument("--model", type=Path, default=FOLDER / "smollm2_135m")
    args = parser.parse_args()
    cells = [(prompt, answer) for answer in args.answers for prompt in args.prompts]
    fits = {one: [n for n in sorted(args.rows) if sum(one) * n <= args.most_tokens] for one in cells}
    left_out = [one for one in cells if not fits[one]]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        built = trainers(args.model, Path(folder), max(args.rows))
        for name in built:  # the first pass of a process is slow
            update(built[name], micro_batch(20, 8, 4, 100, built[name].model.device))
        for prompt, answer in (one for one in cells if fits[one]):
            rows.append(cell(built, prompt, answer, fits[prompt, answer][-1], args.repeats))
            print(*table_row(rows[-1]), flush=True)
    print("\n" + text_table(HEADERS, [table_row(one) for one in rows]))
    for prompt, answer in left_out:
        print(f"left out: P = {prompt}, L = {answer}, {(prompt + answer) * min(args.rows)} tokens in separate rows")
    met = {
        f"at least {REACHED} of the expected ratio where that is {PAYS} or more": all(
            one["ratio"] >= REACHED * one["expected"] for one in rows if one["expected"] >= PAYS
        ),
        f"nowhere below {LOST}": all(one["ratio"] >= LOST for one in rows),
        f"gradients differ by at most {GRADIENT:g}": all(one["gradient_difference"] <= GRADIENT for one in rows),
    }
    figures = {"rows": rows, "left_out": left_out, "model": args.model.name}
    return finish("shared_prompt", figures, met, args, "duet-trl", "torch", "transformers", "trl")


if __name__ == "__main__":
    sys.exit(main())
