# SPDX-License-Identifier: Apache-2.0
# accelerate launch recipes/math_qwen3.py --cell table1/qwen3_1.7b_duet_50    (8 x H100 80 GB)
"""Trains Qwen3 or Llama on MATH: a cell of the paper's tables (`--cell table3/eps_0.10`), or a run of your own:

    accelerate launch recipes/math_qwen3.py --config paper --model qwen3_4b --method duet --budget_fraction 0.25

Every field of `RecipeArguments`, `RecipeConfig` (command_line.py) and TRL's `ModelConfig` is an option, and may stand
in a YAML file of yours (`--config file.yaml`). `--dry_run` shows what it comes to, without a GPU or a network. Model
and data come from the Hub or from local paths. Llama is gated: accept its terms on the Hub and log in first.

Two steps on a CPU with a tiny model:

    python recipes/math_qwen3.py --config math_tiny_smoke --model <folder of a tiny model> --dataset_name <file.jsonl>
"""

from command_line import RecipeArguments, RecipeConfig
from data import MATH, load_math_train
from run import load_tokenizer, start, train
from trl import ModelConfig

from duet_trl.rewards import MathVerifier


def main(arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig) -> None:
    """MATH, graded by the box."""
    arguments.dataset_name = arguments.dataset_name or MATH.hub_id
    tokenizer = load_tokenizer(config, model)
    dataset = load_math_train(
        arguments.dataset_name,
        tokenizer,
        arguments.max_prompt_length,
        heldout=None if arguments.heldout == "none" else arguments.heldout,
        drop_overlap=arguments.drop_overlap,
        chat_template_kwargs=config.chat_template_kwargs,
    )
    reward = MathVerifier(which=arguments.graded or "last")
    train(arguments, config, model, tokenizer, dataset, reward)


if __name__ == "__main__":
    start("math_qwen3", main)
