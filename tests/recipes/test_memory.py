# SPDX-License-Identifier: Apache-2.0
"""The estimate of a GPU's memory: shapes against transformers and PEFT, parts in closed form, remedies that help."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

ROOT = Path(__file__).parents[2]
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(ROOT / "recipes"))

import memory  # noqa: E402
from arguments import parse  # noqa: E402
from cell import Cell, build_cell, print_cell  # noqa: E402

CELL = "math_qwen3_1.7b_duet_50"
GIB = 2**30


def resolve(name: str, *options: str) -> Cell:
    """The cell of a configuration with options of the command line."""
    argv = ["--config", str(ROOT / "recipes" / "configs" / f"{name}.yaml"), *options, "--dry_run"]
    return build_cell(*parse("math_qwen3", argv))


# ---- Shapes -----------------------------------------------------------------------------------------------------


def transformers_config(shape: memory.Shape, kind: str = ""):
    """A configuration of transformers with this shape."""
    kinds = {"qwen3": Qwen3Config, "llama": LlamaConfig, "qwen2": Qwen2Config}
    return kinds[kind or ("qwen3" if shape.query_key_norm else "llama")](
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=shape.tied,
        attn_implementation="sdpa",
    )


def on_meta(config) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


SMALL = memory.Shape(3, 64, 160, 8, 2, 16, 100, tied=False)


@pytest.mark.parametrize("name", memory.MODELS)
def test_parameters_of_a_known_model_are_those_of_transformers(name: str) -> None:
    shape = memory.MODELS[name]
    assert shape.num_parameters == on_meta(transformers_config(shape)).num_parameters()


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_shape_of_a_configuration_counts_its_parameters(kind: str, tied: bool) -> None:
    config = transformers_config(SMALL, kind)
    config.tie_word_embeddings = tied
    assert memory.shape_of(config).num_parameters == on_meta(config).num_parameters()


def test_published_sizes() -> None:
    # The sum of the tensors in the published safetensors files.
    sizes = {name: shape.num_parameters for name, shape in memory.MODELS.items()}
    assert sizes["Qwen/Qwen3-1.7B"] == 1_720_574_976 and sizes["Qwen/Qwen3-4B"] == 4_022_468_096
    assert sizes["meta-llama/Llama-3.2-3B"] == 3_212_749_824


@pytest.mark.parametrize("modules", [None, ["all-linear"], "all-linear", ["q_proj", "down_proj"]])
def test_adapter_parameters_are_those_of_peft(modules) -> None:
    from peft import LoraConfig, get_peft_model

    target = "all-linear" if modules == ["all-linear"] else modules
    lora = LoraConfig(r=5, target_modules=target, task_type="CAUSAL_LM")
    trained, _ = get_peft_model(on_meta(transformers_config(SMALL, "qwen3")), lora).get_nb_trainable_parameters()
    assert SMALL.adapter_parameters(5, modules) == trained


def counted_bytes(kind: str, shape: memory.Shape, dtype: torch.dtype, mixed: bool) -> float:
    """Bytes per token that one more layer saves for its backward pass, weights and their casts left out."""

    def saved(num_layers: int) -> int:
        config = transformers_config(replace(shape, num_layers=num_layers), kind)
        model = AutoModelForCausalLM.from_config(config).to(dtype)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        kept: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        ids, mask = torch.zeros(2, 64, dtype=torch.long), torch.ones(2, 64, dtype=torch.long)
        mask[0, :5] = 0  # padding: attention gets a mask
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            model.model(input_ids=ids, attention_mask=mask, use_cache=False)
        return sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in weights)

    casts = 2 * sum(inputs * outputs for inputs, outputs in shape.linear.values()) if mixed else 0
    return ((saved(3) - saved(1)) / 2 - casts) / (2 * 64)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize(("dtype", "mixed"), [("float32", True), ("bfloat16", False), ("float32", False)])
def test_saved_bytes_bound_what_a_layer_saves(kind: str, dtype: str, mixed: bool) -> None:
    shape = memory.Shape(1, 256, 768, 2, 1, 128, 64, tied=True, query_key_norm=kind == "qwen3")  # Qwen3-1.7B / 8
    counted = counted_bytes(kind, shape, getattr(torch, dtype), mixed)
    assert counted <= shape.saved_bytes(memory.DTYPE_BYTES[dtype], mixed) <= 1.8 * counted


# ---- Memory -----------------------------------------------------------------------------------------------------


def test_a_trained_parameter_takes_sixteen_bytes_and_sharding_divides_them() -> None:
    def parts(sharding: str, *options: str) -> dict[str, float]:
        found = resolve(CELL, "--sharding", sharding, *options).memory
        return found.always | found.update

    size = memory.MODELS["Qwen/Qwen3-1.7B"].num_parameters
    whole, split = parts("none"), parts("full")
    states = ("weights", "gradients", "Adam's two moments")
    assert sum(whole[name] for name in states) == 16 * size
    assert sum(split[name] for name in states) == 16 * size / 8
    assert whole["reference model"] == 4 * size and split["reference model"] == 4 * size / 8
    assert whole["DDP's buckets"] == 4 * size and "DDP's buckets" not in split
    assert "DDP's buckets" not in parts("none", "--num_gpus", "1")
    assert "reference model" not in parts("none", "--beta", "0")


def test_lora_trains_its_adapters_only_and_needs_no_reference() -> None:
    cell = resolve("math_qwen3_1.7b_lora_24gb")
    # r x (inputs + outputs) of q, k, v, o, gate, up, down: hidden 2,048, queries 2,048, keys 1,024, MLP 6,144
    adapters = 28 * 32 * (4096 + 3072 + 3072 + 4096 + 3 * 8192)
    assert cell.trained_parameters == adapters
    assert cell.memory.update["gradients"] == 4 * adapters
    assert cell.memory.always["weights"] == 2 * cell.shape.num_parameters + 4 * adapters
    assert "reference model" not in cell.memory.always


def test_peak_is_the_larger_phase_and_a_waking_engine_belongs_to_both() -> None:
    asleep = resolve(CELL).memory
    awake = resolve(CELL, "--vllm_enable_sleep_mode", "false").memory
    share = 0.4 * 80 * GIB
    always, update = sum(asleep.always.values()), sum(asleep.update.values())
    assert asleep.generation == {"vLLM": pytest.approx(share)}
    assert (asleep.busiest, asleep.peak) == ("generation", pytest.approx(always + share))
    assert awake.busiest == "update"
    assert awake.peak == pytest.approx(always + update - memory.ENGINE_ASLEEP + share)


def test_engine_elsewhere_costs_nothing_here_and_transformers_caches_every_rollout() -> None:
    assert resolve(CELL, "--vllm_mode", "server").memory.generation == {}
    cell = resolve(CELL, "--use_vllm", "false")
    # 128 rollouts of a GPU x 3,584 tokens x 2 (keys, values) x 28 layers x 8 heads x 128 x 2 bytes
    assert cell.memory.generation["keys and values"] == 128 * 3584 * 2 * 28 * 8 * 128 * 2


def test_checkpointing_and_smaller_batches_need_less() -> None:
    def activations(*options: str) -> float:
        return resolve(CELL, *options).memory.update["activations"]

    assert activations("--gradient_checkpointing", "false") > 5 * activations()
    assert activations("--per_device_train_batch_size", "2") == activations() / 2


def test_every_remedy_of_a_run_that_does_not_fit_makes_it_fit() -> None:
    options = ["--sharding", "none", "--gpu_memory_gib", "96"]
    cell = resolve("math_qwen3_4b_duet_50", *options)
    assert not cell.memory.fits and len(cell.remedies) >= 2
    for remedy in cell.remedies:
        changes = [change.split(": ") for change in remedy.removeprefix("LoRA: ").split(", ") if ": " in change]
        changed = [word for name, value in changes for word in (f"--{name}", value)]
        assert resolve("math_qwen3_4b_duet_50", *options, *changed).memory.fits, remedy


def test_share_of_vllm_without_room_for_a_sequence_does_not_fit(capsys) -> None:
    # 80 GiB x 0.128 - 2 of workspace - 7.49 of weights = 0.75 GiB = 5,461 tokens of 36 layers x 8 heads x 128 x 2 x 2
    options = ("--vllm_gpu_memory_utilization", "0.128")
    cell = resolve("math_qwen3_4b_duet_50", *options)
    assert cell.memory.cache_tokens == int((80 * 0.128 * GIB - 2 * GIB - 2 * 4_022_468_096) / (36 * 8 * 128 * 4))
    assert cell.memory.peak < cell.memory.gpu and not cell.memory.fits
    assert any(remedy.startswith("vllm_gpu_memory_utilization: ") for remedy in cell.remedies)
    print_cell(cell)
    assert "vLLM's share has no room for 8,192 tokens (vllm_max_model_length)" in capsys.readouterr().out
    assert resolve("math_qwen3_4b_duet_50", *options, "--vllm_max_model_length", "4000").memory.fits
