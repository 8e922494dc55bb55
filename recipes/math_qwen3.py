# SPDX-License-Identifier: Apache-2.0
# accelerate launch recipes/math_qwen3.py --config recipes/configs/math_qwen3_1.7b_duet_50.yaml    (8 x H100 80 GB)
"""Trains a model on MATH with DUET or, with the other configuration, with plain GRPO.

Every field of `MathArguments`, `DUETGRPOConfig` and TRL's `ModelConfig` can stand in the YAML file and be overridden
on the command line. Model and data come from the Hub or from local paths. Two steps on a CPU with a tiny model:

    python recipes/math_qwen3.py --config recipes/configs/math_tiny_smoke.yaml \
        --model_name_or_path <folder of a tiny model> --dataset_name <file.jsonl>
"""

import logging
from dataclasses import dataclass, field

from data import load_math_train
from transformers import AutoTokenizer
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.rewards import MathVerifier


@dataclass
class MathArguments:
    """Arguments of this recipe."""

    dataset_name: str = field(
        default="EleutherAI/hendrycks_math",
        metadata={"help": "Data set on the Hub, or a local .jsonl or .parquet file, with problems and gold answers."},
    )
    max_prompt_length: int = field(
        default=512, metadata={"help": "Prompts with more tokens, chat template included, are left out. Paper: 512."}
    )
    graded_box: str = field(
        default="last", metadata={"help": "Box that is graded: the 'last' of a completion (paper) or the 'first'."}
    )


def main(arguments: MathArguments, config: DUETGRPOConfig, model: ModelConfig) -> None:
    """Data, reward, trainer, training, saving."""
    tokenizer = AutoTokenizer.from_pretrained(
        model.model_name_or_path, revision=model.model_revision, trust_remote_code=config.trust_remote_code
    )
    train_dataset = load_math_train(arguments.dataset_name, tokenizer, arguments.max_prompt_length)

    config.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": config.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(config.model_init_kwargs or {}),
    }
    trainer = DUETGRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=MathVerifier(which=arguments.graded_box),
        args=config,
        train_dataset=train_dataset,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
    trainer.save_model(config.output_dir)
    if config.push_to_hub:
        trainer.push_to_hub(dataset_name=arguments.dataset_name)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    parser = TrlParser((MathArguments, DUETGRPOConfig, ModelConfig))
    main(*parser.parse_args_and_config(fail_with_unknown_args=True))
