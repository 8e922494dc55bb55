# SPDX-License-Identifier: Apache-2.0
"""How much memory of a GPU a run needs: an estimate from the model's shape, made without the model.

Weights, gradients and moments follow from the number of parameters; activations from what a layer saves for its
backward pass, counted once with `torch.autograd.graph.saved_tensors_hooks` (tests repeat the count); the output layer
from the tiles of `trl.kernels.ChunkedLogProbFunction`. What no formula gives has a name and a reason below.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

GIB = 2**30
RESERVE = 2 * GIB
"""CUDA's context, NCCL's buffers, what PyTorch's allocator cannot use. An assumption."""
ENGINE_ASLEEP = 1.5 * GIB
"""What a sleeping vLLM keeps: its CUDA graphs and workspaces; weights and cache are given back. An assumption."""
ENGINE_WORKSPACE = 2 * GIB
"""What vLLM needs beside weights and cache: its profile of 4,096 tokens, logits of a batch, graphs. An assumption."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""Tile of logits in `trl.kernels.ChunkedLogProbFunction`: TRL never holds the logits of a micro-batch."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""Bytes of a weight by the name of its dtype; "auto" is the dtype of the published checkpoint, bfloat16."""


@dataclass(frozen=True)
class Shape:
    """What a decoder's size follows from (Llama, Qwen2 and Qwen3 architectures)."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    query_key_norm: bool = False
    query_key_value_bias: bool = False

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, the gated MLP, two norms."""
        return (
            sum(inputs * outputs for inputs, outputs in self.linear.values())
            + 2 * self.hidden
            + (2 * self.head_dim if self.query_key_norm else 0)
            + ((self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.query_key_value_bias else 0)
        )

    @property
    def num_parameters(self) -> int:
        """All parameters; embedding and output layer count once where they are tied."""
        embeddings = self.vocab_size * self.hidden * (1 if self.tied else 2)
        return embeddings + self.num_layers * self.layer_parameters + self.hidden

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear map of a layer."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def adapter_parameters(self, rank: int, modules: list[str] | str | None) -> int:
        """Parameters of LoRA: rank x (inputs + outputs) of every adapted map.

        Args:
            rank (int): r.
            modules (list[str] | str | None): Adapted maps; "all-linear" is all seven. None: PEFT's default for these
                architectures, queries and values.
        """
        names = [modules] if isinstance(modules, str) else modules or ["q_proj", "v_proj"]
        chosen = [size for name, size in self.linear.items() if name in names or "all-linear" in names]
        return self.num_layers * rank * sum(inputs + outputs for inputs, outputs in chosen)

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's keys and values in a 16-bit cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 2

    def saved_bytes(self, weight_bytes: int, mixed: bool) -> int:
        """Bytes of one token that a layer saves for its backward pass, with two gradients of the MLP on top (4 f).

        Counted on CPU for Llama and Qwen3 (Qwen3's normalised queries and keys are the larger): in 16 bits
        16 h + 15 (H + K) d + 8 f; under autocast from float32 weights 26 h instead of 16 h, because norms and
        residuals stay in float32; in float32 24 h + 25 (H + K) d + 16 f.
        """
        heads = (self.num_heads + self.num_kv_heads) * self.head_dim
        if weight_bytes == 4 and not mixed:
            return 24 * self.hidden + 25 * heads + 24 * self.intermediate
        return (26 if weight_bytes == 4 else 16) * self.hidden + 15 * heads + 12 * self.intermediate


def _qwen3(*sizes: int, tied: bool = True) -> Shape:
    return Shape(*sizes, tied=tied, query_key_norm=True)


MODELS = {
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 16, 8, 128, 151936),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 16, 8, 128, 151936),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 32, 8, 128, 151936),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 32, 8, 128, 151936, tied=False),
    "meta-llama/Llama-3.2-1B": Shape(16, 2048, 8192, 32, 8, 64, 128256, tied=True),
    "meta-llama/Llama-3.2-3B": Shape(28, 3072, 8192, 24, 8, 128, 128256, tied=True),
}
"""Published models, from their config.json. -Base and -Instruct have the shape of the model they belong to."""


def shape_of(config: Any) -> Shape:
    """Shape from a configuration of transformers.

    Args:
        config (PreTrainedConfig): Configuration of a causal language model.

    Raises:
        ValueError: If its architecture is not one of those counted here.
    """
    if config.model_type not in ("llama", "qwen2", "qwen3"):
        raise ValueError(f"the architecture {config.model_type!r} is not one of llama, qwen2 and qwen3")
    return Shape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        tied=config.tie_word_embeddings,
        query_key_norm=config.model_type == "qwen3",
        query_key_value_bias=config.model_type == "qwen2",
    )


@dataclass(frozen=True)
class Run:
    """What the memory of a run follows from beside the model.

    Attributes:
        shape (Shape): The model.
        weight_bytes (int): Bytes of a weight as it is loaded: 4 or 2.
        mixed (bool): Whether the forward pass runs in 16 bits under autocast.
        num_gpus (int): GPUs that train.
        sharded (bool): Weights, gradients and moments are split over them (FSDP2, ZeRO-3), not copied.
        adapter_parameters (int | None): Parameters of LoRA; None: every parameter is trained.
        reference (bool): A reference model is held (KL without LoRA).
        rows (int): Rollouts of a micro-batch.
        row_tokens, completion_tokens (int): Most tokens of one, with and without the prompt.
        checkpointing (bool): Gradient checkpointing.
        engine (str): "colocate", "server" or "transformers".
        engine_share (float): Colocated vLLM's share of the GPU.
        engine_sleeps (bool): Whether it gives its memory back during the update.
        engine_gpus (int): GPUs one engine is spread over (tensor parallel).
        engine_tokens (int): Longest sequence it must be able to hold, or it does not start.
        generated_rows (int): Rollouts that one GPU generates at a time with transformers.
        gpu_gib (float): Memory of a GPU.
    """

    shape: Shape
    weight_bytes: int
    mixed: bool
    num_gpus: int
    sharded: bool
    adapter_parameters: int | None
    reference: bool
    rows: int
    row_tokens: int
    completion_tokens: int
    checkpointing: bool
    engine: str
    engine_share: float
    engine_sleeps: bool
    engine_gpus: int
    engine_tokens: int
    generated_rows: int
    gpu_gib: float


@dataclass(frozen=True)
class Memory:
    """The estimate, in bytes of one GPU.

    Attributes:
        always (dict[str, float]): What stays on the GPU.
        update (dict[str, float]): What the update adds.
        generation (dict[str, float]): What generation adds.
        gpu (float): Memory of the GPU.
        cache_tokens (int | None): Tokens that the cache of a colocated engine holds; None: no such engine.
        engine_tokens (int): Tokens that it must hold to start.
    """

    always: dict[str, float]
    update: dict[str, float]
    generation: dict[str, float]
    gpu: float
    cache_tokens: int | None
    engine_tokens: int

    @property
    def peak(self) -> float:
        """The larger of the two phases."""
        return sum(self.always.values()) + max(sum(self.update.values()), sum(self.generation.values()))

    @property
    def busiest(self) -> str:
        """The phase that needs most."""
        return "update" if sum(self.update.values()) >= sum(self.generation.values()) else "generation"

    @property
    def fits(self) -> bool:
        """Whether the GPU holds the peak, and the engine's share its weights and a sequence of full length."""
        return self.peak <= self.gpu and (self.cache_tokens is None or self.cache_tokens >= self.engine_tokens)


def estimate(run: Run) -> Memory:
    """The parts of the estimate.

    Args:
        run (Run): What it follows from.

    Returns:
        Memory: Bytes per GPU.
    """
    shape, shards = run.shape, run.num_gpus if run.sharded else 1
    total = shape.num_parameters * run.weight_bytes / shards
    # PEFT keeps adapters in float32 whatever the model's dtype.
    trained = total if run.adapter_parameters is None else run.adapter_parameters * 4 / shards
    always = {"weights": total + (0 if run.adapter_parameters is None else trained), "Adam's two moments": 2 * trained}
    if run.reference:
        always["reference model"] = total
    if run.num_gpus > 1 and not run.sharded:
        always["DDP's buckets"] = trained  # a second copy of the gradients, as long as they are no views of it
    always["reserve"] = RESERVE
    update = {
        "gradients": trained,
        "16-bit and gathered weights": _working_weights(run),
        "activations": _activations(run),
        "output layer": _output_layer(run),
    }
    generation: dict[str, float] = {}
    cached = None
    if run.engine == "colocate":
        share = run.engine_share * run.gpu_gib * GIB
        generation["vLLM"] = share
        update["vLLM asleep" if run.engine_sleeps else "vLLM"] = ENGINE_ASLEEP if run.engine_sleeps else share
        cache = share - ENGINE_WORKSPACE - shape.num_parameters * 2 / run.engine_gpus
        cached = int(max(0.0, cache) / (shape.cache_bytes / run.engine_gpus))
    elif run.engine == "transformers":
        generation["keys and values"] = run.generated_rows * run.row_tokens * shape.cache_bytes
    return Memory(always, update, generation, run.gpu_gib * GIB, cached, run.engine_tokens)


def _working_weights(run: Run) -> float:
    """Copies that live during a pass only."""
    shape = run.shape
    if run.sharded:
        # The layer that is computed and the one fetched ahead, embedding and output layer; weights and gradients.
        gathered = 2 * shape.layer_parameters + shape.vocab_size * shape.hidden * (1 if shape.tied else 2)
        return 2 * gathered * (2 if run.mixed else run.weight_bytes)
    cast = shape.num_parameters if run.adapter_parameters is None else run.adapter_parameters
    return 2 * cast if run.mixed and (run.weight_bytes == 4 or run.adapter_parameters is not None) else 0


def _activations(run: Run) -> float:
    """Inputs of every layer and the inside of one, or without checkpointing the inside of all; the attention mask."""
    shape, tokens = run.shape, run.rows * run.row_tokens
    inside = tokens * shape.saved_bytes(run.weight_bytes, run.mixed)
    mask = run.rows * run.row_tokens**2 * 2
    if not run.checkpointing:
        return shape.num_layers * inside + mask
    return shape.num_layers * tokens * shape.hidden * run.weight_bytes + inside + mask


def _output_layer(run: Run) -> float:
    """A tile of logits with its slice of the weights, hidden states with gradients, the gradient of the weights."""
    shape, tokens = run.shape, run.rows * run.completion_tokens
    width, height = min(shape.vocab_size, TILE_VOCABULARY), min(tokens, TILE_TOKENS)
    tile = (height * width + width * shape.hidden) * (2 if run.mixed else run.weight_bytes)
    hidden = tokens * shape.hidden * (run.weight_bytes + 4)
    # The kernel adds up the gradient of the weights in float32 beside the one that is there.
    return tile + hidden + (shape.vocab_size * shape.hidden * 4 if run.adapter_parameters is None else 0)


def remedies(run: Run) -> list[str]:
    """Single changes after which a run that does not fit would, the least invasive first.

    Args:
        run (Run): A run that does not fit.
    """
    return [text for text, changed in _changes(run) if estimate(changed).fits]


def _changes(run: Run) -> Iterator[tuple[str, Run]]:
    if run.engine == "colocate" and not run.engine_sleeps:
        yield "vllm_enable_sleep_mode: true", replace(run, engine_sleeps=True)
    if not run.checkpointing:
        yield "gradient_checkpointing: true", replace(run, checkpointing=True)
    rows = run.rows // 2
    while rows >= 1:
        yield f"per_device_train_batch_size: {rows}", replace(run, rows=rows)
        rows //= 2
    if run.engine == "colocate":
        for share in (step / 20 for step in range(19, 1, -1)):
            yield f"vllm_gpu_memory_utilization: {share:g}", replace(run, engine_share=share)
    if run.num_gpus > 1 and not run.sharded:
        yield "sharding: full, with recipes/accelerate/fsdp2.yaml", replace(run, sharded=True)
    if run.adapter_parameters is None:
        adapters = run.shape.adapter_parameters(16, "all-linear")
        changed = replace(run, adapter_parameters=adapters, reference=False, weight_bytes=2)
        yield "LoRA: use_peft: true, lora_target_modules: all-linear, dtype: bfloat16", changed
