# SPDX-License-Identifier: Apache-2.0
"""A model in an engine, as the evaluation sees it: token ids of completions, without a gate.

Both engines take the same prompts (the tokenizer's chat template), end at the same ids and use no sampling setting
that was not asked for: what a model's generation_config suggests (top-k 20, a repetition penalty) is left out.
"""

import argparse
import gc
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from duet_trl.evaluation.prompts import MODEL_REMEDY, eos_token_ids, require_chat_template, until_eos

Prompt = list[dict[str, str]]
CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # no pinning to cores that others use
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a second process costs half a minute per model
}
"""Read when vLLM is imported."""


@dataclass
class Model:
    """A model before its weights are loaded.

    Attributes:
        name (str): Name on the Hub or folder.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, which has a chat template.
        eos_ids (tuple[int, ...]): All ids that end a completion.
        context (int): Longest sequence, tokens.
        dtype (str): Precision of the weights, e.g. "bfloat16".
        template_kwargs (dict[str, Any]): For the chat template.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    context: int
    dtype: str
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt with its chat template."""
        return self.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=False, **self.template_kwargs
        )


def describe_model(name: str, template_kwargs: dict[str, Any] | None = None) -> Model:
    """Tokenizer and configuration of a model, by name on the Hub or from a folder.

    Raises:
        ValueError: If a folder is missing or holds no model, the Hub does not give it, or the tokenizer has no chat
            template.
    """
    local = Path(name).is_dir()
    if not local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ValueError(f"there is no folder {name!r}. Give a folder with a model or a name on the Hub.")
    if local and not (Path(name) / "config.json").exists():
        if (Path(name) / "adapter_config.json").exists():
            raise ValueError(
                f"the folder {name!r} holds only a PEFT adapter: merge it first, with peft.AutoPeftModelForCausalLM."
                "from_pretrained(folder).merge_and_unload().save_pretrained(merged), and save the tokenizer there too."
            )
        raise ValueError(f"the folder {name!r} holds no model (no config.json).")
    try:
        config = AutoConfig.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    except OSError as error:
        raise ValueError(f"the model {name!r} cannot be loaded: {error} {MODEL_REMEDY}") from error
    require_chat_template(tokenizer)
    try:
        declared = GenerationConfig.from_pretrained(name).eos_token_id
    except OSError:  # transformers then makes one from the model's configuration
        declared = config.eos_token_id
    text = config.get_text_config()
    return Model(
        name=name,
        tokenizer=tokenizer,
        eos_ids=eos_token_ids(tokenizer, declared),
        context=text.max_position_embeddings,
        dtype=str(text.dtype or config.dtype or torch.bfloat16).removeprefix("torch."),
        template_kwargs=template_kwargs or {},
    )


class TransformersSampler:
    """`model.generate`, batch by batch; runs anywhere."""

    def __init__(self, model: Model, *, batch_size: int = 32, seed: int = 0) -> None:
        self.model = model
        self.batch_size = batch_size
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(seed)
        loaded = AutoModelForCausalLM.from_pretrained(model.name, dtype=model.dtype)
        self.network = loaded.to(self.device).eval()

    @torch.no_grad()
    def sample(
        self, prompts: list[Prompt], num_samples: int, *, temperature: float, top_p: float = 1.0, max_tokens: int
    ) -> list[list[list[int]]]:
        tokenizer = self.model.tokenizer
        pad = self.model.eos_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        choice = {"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
        # Set on the model, because generate takes from there what is not set.
        self.network.generation_config = GenerationConfig(
            do_sample=temperature > 0,
            max_new_tokens=max_tokens,
            eos_token_id=list(self.model.eos_ids),
            pad_token_id=pad,
            **choice,
        )
        rows = [ids for ids in map(self.model.prompt_ids, prompts) for _ in range(num_samples)]
        found: list[list[int]] = []
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            width = max(map(len, batch))
            ids = torch.tensor([[pad] * (width - len(row)) + row for row in batch], device=self.device)
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch], device=self.device)
            output = self.network.generate(input_ids=ids, attention_mask=mask)
            # Without the padding after the end.
            found += [until_eos(row, self.model.eos_ids) for row in output[:, width:].tolist()]
        return _grouped(found, num_samples)

    def close(self) -> None:
        del self.network
        gc.collect()
        torch.cuda.empty_cache()


class VLLMSampler:
    """vLLM in this process."""

    def __init__(
        self,
        model: Model,
        *,
        max_model_len: int,
        gpu_memory_utilization: float = 0.9,
        tensor_parallel_size: int = 1,
        seed: int = 0,
    ) -> None:
        on_cpu, cache_bytes = not torch.cuda.is_available(), None
        if on_cpu:
            for name, value in CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            # By size: a share of the machine's memory is refused where other programs hold some of it.
            cache_bytes = int(float(os.environ["VLLM_CPU_KVCACHE_SPACE"]) * 2**30)
        from vllm import LLM

        self.model = model
        self.llm = LLM(
            model=model.name,
            dtype=model.dtype,
            max_model_len=max_model_len,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=cache_bytes,
            tensor_parallel_size=tensor_parallel_size,
            enforce_eager=on_cpu,
            generation_config="vllm",
            seed=seed,
        )

    def sample(
        self, prompts: list[Prompt], num_samples: int, *, temperature: float, top_p: float = 1.0, max_tokens: int
    ) -> list[list[list[int]]]:
        from vllm import SamplingParams

        parameters = SamplingParams(
            n=num_samples if temperature > 0 else 1,  # greedy samples are equal, and vLLM makes one only
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            stop_token_ids=list(self.model.eos_ids),
            detokenize=False,
        )
        requests = [{"prompt_token_ids": self.model.prompt_ids(prompt)} for prompt in prompts]
        outputs = self.llm.generate(requests, parameters, use_tqdm=sys.stderr.isatty())
        copies = 1 if temperature > 0 else num_samples
        return [
            [list(one.token_ids) for one in sorted(out.outputs, key=lambda one: one.index)] * copies for out in outputs
        ]

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown(timeout=60.0)  # the next model needs the memory
        del self.llm
        gc.collect()
        torch.cuda.empty_cache()


def build_sampler(args: argparse.Namespace, model: Model, max_model_len: int) -> Any:
    """The model in the engine of a command line; `max_model_len` is its longest sequence in tokens."""
    if args.engine == "transformers":
        return TransformersSampler(model, batch_size=args.batch_size, seed=args.seed)
    return VLLMSampler(
        model,
        max_model_len=max_model_len,
        gpu_memory_utilization=args.gpu_memory_utilization,
        tensor_parallel_size=args.tensor_parallel_size,
        seed=args.seed,
    )


def _grouped(rows: list[list[int]], size: int) -> list[list[list[int]]]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]
