# SPDX-License-Identifier: Apache-2.0
# python recipes/fit_surrogate.py --run outputs/calibration --model Qwen/Qwen3-1.7B-Base --output surrogate.json
"""Fits the static surrogate of the paper's ablation, for `surrogate: ridge`, from a finished calibration run.

The run is one with `method: grpo` and `audit_log: true`, an epoch or more. The spread sigma_obs of each prompt (Eq. 3)
follows from its logged advantages and log-probs, and a ridge regression predicts it from the mean log-prob of the
prompt's tokens under the base model. The file holds that feature for every prompt of the training data, so that a run
on these data with this model can use it from its first step: `surrogate: ridge`, `surrogate_file: surrogate.json`.

Needs one GPU that holds the model, or a CPU and patience: a forward pass over every prompt.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from data import load_math_train
from script_arguments import parse
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.utils import pad, selective_log_softmax

from duet_trl.allocate.static_surrogate import SurrogateFile, fit_ridge
from duet_trl.allocate.statistics import PromptStatistics
from duet_trl.allocate.surrogate import sigma_observed
from duet_trl.evaluation.suites import read_rows
from duet_trl.seams.data_checks import prompt_keys


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--run", type=Path, required=True, help="output_dir of the calibration run, with its duet_audit")
    add("--model", required=True, help="base model whose training will use the file: a name on the Hub or a folder")
    add("--output", required=True, help="surrogate file to write")
    add("--data", help="file of the training data with a column 'prompt'; default: what recipe.yaml of the run names")
    add("--prompt_id_column", help="with --data: as in the run")
    add("--penalty", type=float, default=1.0, help="of the ridge, on the standardised feature")
    add("--batch_size", type=int, default=8, help="prompts of a forward pass")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Fit, write the file, and say how good the fit is."""
    args = arguments(argv)
    sigma = observed_sigma(args.run)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    prompts, template = training_prompts(args, tokenizer)
    missing = [key for key in sigma if key not in prompts]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(sigma)} prompts of {args.run} are not in the training data, such as "
            f"{missing[0]!r}. Give the data that the run was trained on as --data, and its --prompt_id_column."
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto").to(device).eval()
    ids = [prompt_ids(prompt, tokenizer, template) for prompt in prompts.values()]
    features = dict(zip(prompts, mean_logps(model, ids, args.batch_size), strict=True))
    fit = fit_ridge(np.array([features[key] for key in sigma]), np.array(list(sigma.values())), args.penalty)
    about = {"run": str(args.run), "num_prompts": len(sigma), "penalty": args.penalty, "r_squared": fit.r_squared}
    SurrogateFile(args.output, args.model, fit.intercept, fit.slope, features, about).write()
    print(
        f"sigma = {fit.intercept:.4g} + {fit.slope:.4g} x mean prompt log-prob, R^2 = {fit.r_squared:.3f} over "
        f"{len(sigma)} prompts. {args.output} has {len(features)} prompts of {args.model}."
    )


def observed_sigma(run: Path) -> dict[str, float]:
    """Mean sigma_obs (Eq. 3) of each prompt over the visits of a run, from its audit log."""
    statistics, seen = PromptStatistics(), {}
    for path in sorted((run / "duet_audit").glob("step_*.parquet")):
        columns = pq.read_table(path).to_pydict()
        keys, group = np.unique(columns["prompt"], return_inverse=True)
        reward, advantage, sum_logp = (np.array(columns[name], float) for name in ("reward", "advantage", "sum_logp"))
        # A rollout with advantage 0 contributes 0 whatever its log-prob, and may have had no forward pass.
        known = np.where((advantage == 0) & ~np.isinf(sum_logp), 0.0, sum_logp)
        use = np.isfinite(reward) & np.isfinite(known) & (np.array(columns["outcome"]) != "aborted")
        statistics.observe_sigma(keys.tolist(), sigma_observed(advantage, known, group, use, len(keys)))
        seen |= dict.fromkeys(keys.tolist())
    sigma = statistics.lookup(list(seen)).sigma
    found = {key: float(value) for key, value in zip(seen, sigma, strict=True) if np.isfinite(value)}
    if not found:
        raise ValueError(
            f"{run}/duet_audit has no prompt with two scored rollouts. Run method=grpo with audit_log=True."
        )
    return found


def training_prompts(
    args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prompts of the training data by key, and what their chat template is rendered with."""
    recipe = args.run / "recipe.yaml"
    if args.data is not None:
        rows, column, template = read_rows(args.data), args.prompt_id_column, {}
    elif recipe.is_file():
        run, config, _ = parse(["--config", str(recipe)])
        heldout = None if run.heldout == "none" else run.heldout
        rows = load_math_train(
            run.dataset_name, tokenizer, run.max_prompt_length, config.chat_template_kwargs, heldout, run.drop_overlap
        ).to_list()
        column, template = config.prompt_id_column, config.chat_template_kwargs or {}
    else:
        raise ValueError(f"{args.run} has no recipe.yaml that names its data. Give the file as --data.")
    return dict(zip(prompt_keys(rows, column), (row["prompt"] for row in rows), strict=True)), template


def prompt_ids(prompt: Any, tokenizer: PreTrainedTokenizerBase, template: dict[str, Any]) -> list[int]:
    """Token ids of a prompt, as the trainer makes them."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **template}
    return tokenizer.apply_chat_template(prompt, **options)


@torch.no_grad()
def mean_logps(model: PreTrainedModel, ids: Sequence[list[int]], batch_size: int) -> list[float]:
    """Mean log-prob of the tokens of each prompt after its first, nats."""
    found: list[float] = []
    for first in range(0, len(ids), batch_size):
        rows = [torch.tensor(row, device=model.device) for row in ids[first : first + batch_size]]
        short = next((row for row in rows if len(row) < 2), None)
        if short is not None:
            raise ValueError(
                f"the prompt of token ids {short.tolist()} has no token to predict. Leave it out of the data."
            )
        tokens, mask = pad(rows, 0, "right"), pad([torch.ones_like(row) for row in rows], 0, "right")
        logits = model(input_ids=tokens, attention_mask=mask).logits[:, :-1]
        logps = selective_log_softmax(logits.float(), tokens[:, 1:]) * mask[:, 1:]
        found += (logps.sum(dim=1) / mask[:, 1:].sum(dim=1)).tolist()
    return found


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"fit_surrogate: {error}")
