# SPDX-License-Identifier: Apache-2.0
# accelerate launch recipes/math_qwen3.py --config recipes/configs/math_qwen3_1.7b_duet_50.yaml    (8 x H100 80 GB)
"""Trains Qwen3-1.7B-Base or Qwen3-4B-Base on MATH, one cell of the paper's tables per configuration.

Every field of `RecipeArguments`, `RecipeConfig` (arguments.py) and TRL's `ModelConfig` can stand in the YAML file and
be overridden on the command line; `--dry_run` shows what a configuration comes to, without a GPU or a network. Model
and data come from the Hub or from local paths. Two steps on a CPU with a tiny model:

    python recipes/math_qwen3.py --config math_tiny_smoke \
        --model_name_or_path <folder of a tiny model> --dataset_name <file.jsonl>
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
