# SPDX-License-Identifier: Apache-2.0
# accelerate launch --config_file recipes/accelerate/ddp.yaml recipes/code_qwen3.py \
#     --config recipes/configs/code.yaml    # 8 x H100 80 GB
"""Trains a Qwen3 model to write programs that pass their unit tests (MBPP), with the closing fence as marker.

Programs of the policy run in a sandbox: `--sandbox` names its isolation, and a machine on which the one that was asked
for does not hold ends the run before the model is loaded. Everything else is as in math_qwen3.py.
"""

from data import MBPP, load_code_train
from run import Begin, load_tokenizer, prepare, start
from script_arguments import ScriptArguments
from trl import ModelConfig

from duet_trl import DUETGRPOConfig
from duet_trl.rewards import CodeVerifier


def main(arguments: ScriptArguments, config: DUETGRPOConfig, model: ModelConfig) -> Begin:
    """MBPP, graded by unit tests of the first closed code block, where the gate stops a rollout."""
    arguments.dataset_name = arguments.dataset_name or MBPP
    reward = CodeVerifier(isolation=arguments.sandbox)
    tokenizer, limit = load_tokenizer(config, model), arguments.max_prompt_length
    dataset = load_code_train(arguments.dataset_name, tokenizer, limit, config.chat_template_kwargs)
    return prepare(arguments, config, model, tokenizer, dataset, reward)


if __name__ == "__main__":
    start(main)
