# SPDX-License-Identifier: Apache-2.0
# accelerate launch recipes/qa_qwen3.py --cell tasks/qa_duet_50    (8 x H100 80 GB)
"""Trains a Qwen3 model on short-form questions (SciQ), with `<answer></answer>` as marker.

Everything but data, reward and marker is as in math_qwen3.py.
"""

from command_line import RecipeArguments, RecipeConfig
from data import SCIQ, load_qa_train
from run import load_tokenizer, start, train
from trl import ModelConfig

from duet_trl.rewards import ChoiceVerifier


def main(arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig) -> None:
    """SciQ, graded by the text of the answer."""
    arguments.dataset_name = arguments.dataset_name or SCIQ.hub_id
    tokenizer = load_tokenizer(config, model)
    dataset = load_qa_train(
        arguments.dataset_name,
        tokenizer,
        arguments.max_prompt_length,
        chat_template_kwargs=config.chat_template_kwargs,
    )
    reward = ChoiceVerifier(marker=config.marker or "qa", which=arguments.graded or "last")
    train(arguments, config, model, tokenizer, dataset, reward)


if __name__ == "__main__":
    start("qa_qwen3", main)
