# SPDX-License-Identifier: Apache-2.0
# accelerate launch --config_file recipes/accelerate/ddp.yaml recipes/math_qwen3.py \
#     --config recipes/configs/paper.yaml --method duet --budget_fraction 0.5    # 8 x H100 80 GB
"""Trains Qwen3 or Llama on MATH.

Every field of `ScriptArguments` (script_arguments.py), `DUETGRPOConfig` and TRL's `ModelConfig` is an option, and may
be in the YAML file of `--config`. Model and data come from the Hub or from local paths. Llama is gated: accept its
terms on the Hub and log in first.

Two steps on a CPU with a tiny model:

    python recipes/math_qwen3.py --config recipes/configs/math_tiny_smoke.yaml
"""

from data import MATH, load_math_train
from run import Begin, load_tokenizer, prepare, start
from script_arguments import ScriptArguments
from trl import ModelConfig

from duet_trl import DUETGRPOConfig
from duet_trl.rewards import MathVerifier


def main(arguments: ScriptArguments, config: DUETGRPOConfig, model: ModelConfig) -> Begin:
    """MATH, graded by the last box."""
    arguments.dataset_name = arguments.dataset_name or MATH
    tokenizer = load_tokenizer(config, model)
    dataset = load_math_train(
        arguments.dataset_name,
        tokenizer,
        arguments.max_prompt_length,
        heldout=None if arguments.heldout == "none" else arguments.heldout,
        drop_overlap=arguments.drop_overlap,
        chat_template_kwargs=config.chat_template_kwargs,
    )
    return prepare(arguments, config, model, tokenizer, dataset, MathVerifier())


if __name__ == "__main__":
    start(main)
