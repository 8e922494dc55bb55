# SPDX-License-Identifier: Apache-2.0
# python recipes/evaluate.py --model Qwen/Qwen3-1.7B-Base --suites math500,gsm8k                 (one GPU of 24 GB)
# python recipes/evaluate.py --model Qwen/Qwen3-1.7B-Base <output_dir> --suites math500   (and a run's checkpoints)
# python recipes/evaluate.py --model <folder> --suites gsm8k --sources gsm8k=<file> --engine transformers    (a CPU)
"""Measures models on benchmark suites: mean@4, best@4 and greedy accuracy, each with an interval over problems.

Without --model it prints the table of what the output folder holds.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from evaluation_run import completion_length, expand_models, load_suites, measure_model, table
from samplers import describe_model
from transformers import logging as transformers_logging

from duet_trl.evaluation.measure import Settings, build_graders
from duet_trl.evaluation.suites import SUITES
from duet_trl.mistakes import mistakes
from duet_trl.rewards import SandboxError


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--model", nargs="+", default=[], help="names on the Hub, folders; a run's folder stands for its checkpoint-N")
    add("--suites", default=",".join(SUITES), help="suites, separated by commas")
    add("--sources", nargs="+", default=[], action="extend", help="suite=place: a local file or a name on the Hub")
    add("--engine", choices=("vllm", "transformers"), default="vllm", help="what generates completions")
    add("--samples", type=int, default=4, help="k of mean@k and best@k")
    add("--temperature", type=float, default=0.9, help="of these samples")
    add("--top_p", type=float, default=0.95, help="of these samples")
    add("--max_tokens", type=int, help="longest completion; default: 3072, or what the model's context leaves")
    add("--limit", type=int, help="only the first problems of each suite")
    add("--sandbox", help="isolation of programs (HumanEval); default: the strongest that works here")
    add("--output_dir", type=Path, default=Path("outputs/evaluation"), help="where results and completions go")
    add("--chat_template_kwargs", type=json.loads, default={}, help='JSON, such as {"date_string": "26 Jul 2024"}')
    add("--batch_size", type=int, default=32, help="transformers: completions at a time")
    add("--gpu_memory_utilization", type=float, default=0.9, help="vLLM: share of a GPU's memory")
    add("--tensor_parallel_size", type=int, default=1, help="vLLM: GPUs of the engine")
    add("--seed", type=int, default=0, help="of the samples")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Check everything, then measure model by model, then print the table."""
    args = arguments(argv)
    with mistakes(SandboxError):
        plan = []
        if args.model:
            if args.batch_size < 1:
                raise ValueError(f"--batch_size must be at least 1, got {args.batch_size}.")
            asked = [name.strip() for name in args.suites.split(",") if name.strip()]
            graders = build_graders(asked, args.sandbox)
            suites = load_suites(asked, args.sources, args.limit)
            for name in expand_models(args.model):
                model = describe_model(name, template_kwargs=args.chat_template_kwargs)
                max_tokens, sequence = completion_length(model, suites, args.max_tokens)
                plan.append((model, Settings(args.samples, args.temperature, args.top_p, max_tokens), sequence))
        for model, settings, sequence in plan:
            measure_model(args, model, settings, sequence, suites, graders)
        print(table(args.output_dir))


if __name__ == "__main__":
    transformers_logging.set_verbosity_error()
    main()
