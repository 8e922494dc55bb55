# SPDX-License-Identifier: Apache-2.0
# accelerate launch --config_file recipes/accelerate/ddp.yaml recipes/qa_qwen3.py \
#     --config recipes/configs/qa.yaml    # 8 x H100 80 GB
"""Trains a Qwen3 model on short-form questions (SciQ), with `<answer></answer>` as marker.

Everything but data, reward and marker is as in math_qwen3.py.
"""

from data import SCIQ, load_qa_train
from run import Begin, load_tokenizer, prepare, start
from script_arguments import ScriptArguments
from trl import ModelConfig

from duet_trl import DUETGRPOConfig
from duet_trl.rewards import ChoiceVerifier


def main(arguments: ScriptArguments, config: DUETGRPOConfig, model: ModelConfig) -> Begin:
    """SciQ, graded by the text of the last answer."""
    arguments.dataset_name = arguments.dataset_name or SCIQ
    tokenizer, limit = load_tokenizer(config, model), arguments.max_prompt_length
    dataset = load_qa_train(arguments.dataset_name, tokenizer, limit, config.chat_template_kwargs)
    reward = ChoiceVerifier(marker=config.marker or "qa")
    return prepare(arguments, config, model, tokenizer, dataset, reward)


if __name__ == "__main__":
    start(main)
