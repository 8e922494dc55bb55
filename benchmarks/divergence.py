# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/divergence.py [--check]: is the divergence that several updates of a batch follow the true one?

The tokens of rollouts that a policy drew are scored before and after all its weights changed at random, relative to
the size of each tensor. Truth: the KL divergence over the whole vocabulary at every token, in float32, by a plain
model. Then what `updates="several"` measures (one drawn token of each distribution, a model under bf16 autocast,
its forward pass in float32), what it measures where weights are sharded or quantised (bf16 less its own rounding), and
what bf16 alone would say. Policies: the two pre-trained ones (`make models`) and the tiny one of `two_ways`.
"""

import copy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from benchmarks.common import argument_parser, write_result  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.update.divergence import divergence_sums, in_float32, nudged  # noqa: E402
from duet_trl.update.trust_region import DESIRED_KL  # noqa: E402
from recipes import sums  # noqa: E402
from recipes.pretrained_models import FOLDER, SOURCES  # noqa: E402
from recipes.tiny_math.problems import TRAIN  # noqa: E402
from recipes.tiny_two_ways.task import sample_problems  # noqa: E402

CHANGES = (0.0, 1e-7, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Of a weight, relative to the root mean square of its tensor."""
SIZES = (100, 2000)
"""Tokens that the divergence is measured on."""
TOLERANCE = 1.5
TWO_WAYS = ROOT / "recipes" / "tiny_two_ways" / "checkpoint"
ROWS = 8  # a forward pass
Rows = list[tuple[list[int], list[int]]]


def main() -> None:
    """Measure, print and write the figures; with --check exit with an error where an estimate is off."""
    parser = argument_parser(__doc__)
    names = [*SOURCES, "two_ways"]
    parser.add_argument("--policies", nargs="+", choices=names, default=names)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="tokens")
    args = parser.parse_args()
    begin = time.perf_counter()
    found = [row for name in args.policies for row in measure(name, args.sizes, args.seed)]
    missed = [row for row in found if not is_right(row)]
    headers = ("policy", "tokens", "change", "truth", "measured", "over truth", "bf16 less rounding", "bf16")
    print(f"KL divergence, nats per token; desired: {DESIRED_KL:g}\n")
    print(text_table(headers, [[_cell(row[name]) for name in _COLUMNS] for row in found]))
    path = write_result(
        "divergence",
        {
            "rows": found,
            "desired_kl": DESIRED_KL,
            "seed": args.seed,
            "seconds": time.perf_counter() - begin,
            "hardware": hardware(),
            "versions": versions("torch", "transformers", "accelerate"),
        },
    )
    print(f"\n{path}; {time.perf_counter() - begin:.0f} s")
    for row in missed:
        print(f"target missed: {row['policy']}, {row['tokens']} tokens, change {row['change']:g}")
    if args.check and missed:
        sys.exit(1)


_COLUMNS = ("policy", "tokens", "change", "truth", "measured", "ratio", "less_rounding", "bf16")


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def is_right(row: dict[str, Any]) -> bool:
    """Within `TOLERANCE` of the truth where that is above a tenth of what is desired, else below that tenth."""
    tenth = DESIRED_KL / 10
    if row["truth"] > tenth:
        return 1 / TOLERANCE <= row["measured"] / row["truth"] <= TOLERANCE
    return row["measured"] < tenth * TOLERANCE


def measure(name: str, sizes: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """A row for each number of tokens and each change."""
    folder = TWO_WAYS if name == "two_ways" else FOLDER / name
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    rollouts = draw(start, AutoTokenizer.from_pretrained(folder), name, max(sizes), seed)
    # As a trainer has it: weights in float32, a forward pass under autocast.
    policy = Accelerator(mixed_precision="bf16", cpu=device == "cpu").prepare_model(copy.deepcopy(start))
    plain = copy.deepcopy(start)
    before = {"exact": exact_logps(policy, rollouts), "bf16": bf16_logps(policy, rollouts)}
    weights = [one.detach() for one in policy.parameters()]
    original = [one.clone() for one in weights]
    with nudged(weights, seed):
        rounding = [now - old for now, old in zip(bf16_logps(policy, rollouts), before["bf16"], strict=True)]
    rows = []
    for change in CHANGES:
        change_at_random(weights, original, change, seed)
        plain.load_state_dict(policy.state_dict())
        truth = true_divergence(start, plain, rollouts)
        moved = {
            "exact": [n - o for n, o in zip(exact_logps(policy, rollouts), before["exact"], strict=True)],
            "bf16": [n - o for n, o in zip(bf16_logps(policy, rollouts), before["bf16"], strict=True)],
        }
        for size in sizes:
            true = float(torch.cat(truth)[:size].mean())
            measured, bf16, floor = (mean(moved["exact"], size), mean(moved["bf16"], size), mean(rounding, size))
            rows.append(
                {
                    "policy": name,
                    "tokens": size,
                    "change": change,
                    "truth": true,
                    "measured": measured,
                    "ratio": measured / true if true > 0 else None,
                    "less_rounding": max(bf16 - floor, 0.0),
                    "bf16": bf16,
                }
            )
    return sorted(rows, key=lambda row: row["tokens"])


@torch.no_grad()
def draw(model: nn.Module, tokenizer: Any, name: str, num_tokens: int, seed: int) -> Rows:
    """Prompts and completions that the policy drew at temperature 1, of at least this many tokens."""
    if name == "two_ways":
        problems = sample_problems(TRAIN, 64, seed=seed)
        prompts = [
            tokenizer.apply_chat_template(problem.messages, add_generation_prompt=True, return_dict=False)
            for problem in problems
        ]
    else:
        prompts = [tokenizer(problem.prompt)["input_ids"] for problem in sums.train_problems(64, seed=seed)]
    torch.manual_seed(seed)
    rollouts: Rows = []
    for prompt in prompts:
        ids = torch.tensor([prompt] * 4, device=model.device)
        drawn = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=sums.MAX_COMPLETION_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
        )
        ended = (drawn[:, len(prompt) :] == tokenizer.eos_token_id).int()
        lengths = torch.where(ended.any(1), ended.argmax(1) + 1, ended.shape[1]).tolist()
        rollouts += [(prompt, row[len(prompt) :][:n].tolist()) for row, n in zip(drawn, lengths, strict=True)]
        if sum(len(completion) for _, completion in rollouts) >= num_tokens:
            return rollouts
    raise ValueError(f"{len(prompts)} prompts gave fewer than {num_tokens} tokens. Ask for fewer.")


def _chunks(rollouts: Rows) -> list[tuple[torch.Tensor, Rows]]:
    """Ids of some rollouts, padded on the right, where causal attention does not see it."""
    chunks = []
    for first in range(0, len(rollouts), ROWS):
        rows = rollouts[first : first + ROWS]
        texts = [torch.tensor(prompt + completion) for prompt, completion in rows]
        chunks.append((nn.utils.rnn.pad_sequence(texts, batch_first=True), rows))
    return chunks


@torch.no_grad()
def score(forward: Callable[..., Any], device: torch.device, rollouts: Rows) -> list[torch.Tensor]:
    """Log-probs of the completions' tokens, a tensor each."""
    found = []
    for ids, rows in _chunks(rollouts):
        logits = forward(input_ids=ids.to(device)).logits
        for row, (prompt, completion) in zip(logits, rows, strict=True):
            logps = row[len(prompt) - 1 : len(prompt) + len(completion) - 1].float().log_softmax(-1)
            found.append(logps.gather(-1, torch.tensor(completion, device=device)[:, None])[:, 0].cpu())
    return found


def exact_logps(policy: nn.Module, rollouts: Rows) -> list[torch.Tensor]:
    """As `updates="several"` scores."""
    with in_float32(policy) as forward:
        return score(forward, policy.device, rollouts)


def bf16_logps(policy: nn.Module, rollouts: Rows) -> list[torch.Tensor]:
    """As a training step scores."""
    return score(policy, policy.device, rollouts)


@torch.no_grad()
def true_divergence(start: nn.Module, now: nn.Module, rollouts: Rows) -> list[torch.Tensor]:
    """KL divergence over the vocabulary at every token of the completions, a tensor each."""
    found = []
    for ids, rows in _chunks(rollouts):
        both = [model(input_ids=ids.to(start.device)).logits for model in (start, now)]
        for row, (prompt, completion) in enumerate(rows):
            place = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
            before, after = (logits[row, place].double().log_softmax(-1) for logits in both)
            found.append((before.exp() * (before - after)).sum(-1).clamp(min=0.0).cpu())
    return found


@torch.no_grad()
def change_at_random(
    weights: Sequence[torch.Tensor], original: Sequence[torch.Tensor], change: float, seed: int
) -> None:
    """Set weights to the original ones, changed by noise of this size relative to each tensor's own."""
    generator = torch.Generator(weights[0].device).manual_seed(seed + 1)
    for one, before in zip(weights, original, strict=True):
        noise = torch.randn(before.shape, generator=generator, device=before.device)
        one.copy_(before + change * before.square().mean().sqrt() * noise)


def mean(moved: Sequence[torch.Tensor], size: int) -> float:
    """Mean divergence over the first tokens, nats."""
    tokens = torch.cat(list(moved))[:size]
    total, count = divergence_sums(tokens, torch.ones_like(tokens)).tolist()
    return total / count


if __name__ == "__main__":
    main()
