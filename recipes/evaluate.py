# SPDX-License-Identifier: Apache-2.0
# python recipes/evaluate.py --model Qwen/Qwen3-1.7B-Base --suites math500,gsm8k                 (one GPU of 24 GB)
# python recipes/evaluate.py --model Qwen/Qwen3-1.7B-Base <output_dir> --suites math500   (its checkpoints, best, last)
# python recipes/evaluate.py --model <folder> --suites gsm8k --sources gsm8k=<file> --engine transformers    (a CPU)
"""Measures models on benchmark suites: mean@4, best@4 and greedy mean@1, each with an interval over problems.

Result files have lm-evaluation-harness's layout; --beside puts earlier ones into the table.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluation_run import check_lengths, check_shift, expand_models, load_suites, measure_model, print_table
from samplers import check_server, describe_model
from transformers import logging as transformers_logging

from duet_trl.evaluation.measure import Settings, build_graders
from duet_trl.evaluation.results import read_results
from duet_trl.evaluation.suites import SUITES
from duet_trl.rewards import SandboxError


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--model", nargs="+", default=[], help="names on the Hub, folders; a run's folder stands for its checkpoint-N")
    add("--suites", default=",".join(SUITES), help="suites, separated by commas")
    add(
        "--sources",
        nargs="+",
        default=[],
        action="extend",
        help="suite=place: a local file or a name on the Hub",
    )
    add("--engine", choices=("vllm", "server", "transformers"), default="vllm", help="vLLM here, or a `vllm serve`")
    add("--server", default="http://127.0.0.1:8000", help="address of the server; its token in DUET_SERVER_TOKEN")
    add("--samples", type=int, default=4, help="k of mean@k and best@k")
    add("--temperature", type=float, default=0.9, help="of these samples")
    add("--top_p", type=float, default=0.95, help="of these samples")
    add("--max_tokens", type=int, help="longest completion; default: 3072, or what the model's context leaves")
    add("--greedy", action=switch, default=True, help="measure greedy mean@1 too")
    add("--limit", type=int, help="first problems of each suite only")
    add("--graded", choices=("first", "last"), help="answer that is graded; default: last box, first code block")
    add("--sandbox", help="isolation of programs (HumanEval); default: the strongest that works here")
    add("--output_dir", type=Path, default=Path("outputs/evaluation"), help="where result files go")
    add("--save_samples", action=switch, default=True, help="write every completion")
    add("--beside", nargs="+", default=[], help="earlier result files, or folders of them, for the table")
    add("--shift_to", help="result file of the common step 0: adds the paper's shifted columns (docs/evaluation.md)")
    add("--step0", help="result file of the run's own step 0, if it is not among the models")
    add("--revision", help="branch or commit of the models on the Hub")
    add("--trust_remote_code", action="store_true", help="run code that comes with a model")
    add("--dtype", help="precision of the weights; default: that of the checkpoint")
    add("--chat_template_kwargs", type=json.loads, default={}, help='JSON, such as {"date_string": "26 Jul 2024"}')
    add("--batch_size", type=int, default=32, help="transformers: completions at a time")
    add("--gpu_memory_utilization", type=float, default=0.9, help="vLLM: share of a GPU's memory")
    add("--tensor_parallel_size", type=int, default=1, help="vLLM: GPUs of the engine")
    add("--seed", type=int, default=0, help="of the samples (not on a server) and of the intervals")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Check everything, then measure model by model, then print the table."""
    args = arguments(argv)
    try:
        args.model = expand_models(args.model)
        if args.batch_size < 1:
            raise ValueError(f"--batch_size must be at least 1, got {args.batch_size}.")
        beside = [read_results(place) for place in args.beside]
        names = [name.strip() for name in args.suites.split(",") if name.strip()] if args.model else []
        if args.model and not names:
            raise ValueError(f"--suites {args.suites!r} names no suite. Choose from {', '.join(SUITES)}.")
        own = [entry.partition("=")[0] for entry in args.sources]
        graders = build_graders(names, own=own, sandbox=args.sandbox, which=args.graded)
        reference, step0 = check_shift(args.shift_to, args.step0, args.model, names, args.samples, beside)
        suites = load_suites(names, args.sources, args.limit)
        context = check_server(args.server, args.model) if args.engine == "server" and args.model else None
        models = [
            describe_model(name, args.revision, args.trust_remote_code, args.dtype, args.chat_template_kwargs)
            for name in args.model
        ]
        lengths = [check_lengths(model, suites, args.max_tokens, context) for model in models]
        settings = [
            Settings(args.samples, args.temperature, args.top_p, length.max_tokens, args.greedy, args.seed)
            for length in lengths
        ]
        if not models and not beside:
            raise ValueError("nothing to do: give --model, or --beside with result files for a table.")
    except (ValueError, OSError, ImportError, SandboxError) as error:
        sys.exit(f"error: {error}")
    measured = [
        measure_model(args, model, length, setting, suites, graders)
        for model, length, setting in zip(models, lengths, settings, strict=True)
    ]
    print_table(args.output_dir, beside, measured, step0, reference)


if __name__ == "__main__":
    transformers_logging.set_verbosity_error()
    main()
