# SPDX-License-Identifier: Apache-2.0
"""accelerate reads every configuration of recipes/accelerate as it is meant: no key is ignored, none is misspelt."""

import argparse
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from torch.distributed.fsdp import OffloadPolicy

FOLDER = Path(__file__).parents[2] / "recipes" / "accelerate"
FILES = sorted(FOLDER.glob("*.yaml"))
# The file that TRL ships for the same purpose; its single_gpu.yaml counts eight processes.
TRL_NAMES = {"single_gpu": "single_gpu", "ddp": "multi_gpu", "fsdp2": "fsdp2", "zero3": "zero3"}


def launch_arguments(file: Path, num_processes: int) -> argparse.Namespace:
    """What `accelerate launch --config_file file --num_processes n script.py` comes to."""
    line = ["--config_file", str(file), "--num_processes", str(num_processes), "--main_process_port", "0", "script.py"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(line))
    return arguments


def unknown_keys(file: Path) -> set[str]:
    """Keys of the nested sections that are no argument of `accelerate launch`, which would ignore them in silence."""
    known = set(vars(launch_command_parser().parse_args(["script.py"])))
    sections = [value for value in yaml.safe_load(file.read_text()).values() if isinstance(value, dict)]
    return {key for section in sections for key in section} - known


def test_there_is_one_for_each_way_to_train() -> None:
    assert {file.stem for file in FILES} == set(TRL_NAMES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_loads_and_every_key_is_known(file: Path) -> None:
    config = load_config_from_file(str(file))  # refuses unknown keys of the outer level
    assert config.mixed_precision == "bf16" and config.num_machines == 1 and not config.use_cpu
    assert unknown_keys(file) == set()


def test_a_misspelt_key_is_caught(tmp_path: Path) -> None:
    text = (FOLDER / "fsdp2.yaml").read_text()
    (tmp_path / "inner.yaml").write_text(text.replace("fsdp_reshard_after_forward", "fsdp_reshard_after_backward"))
    assert unknown_keys(tmp_path / "inner.yaml") == {"fsdp_reshard_after_backward"}
    (tmp_path / "outer.yaml").write_text(text.replace("num_machines", "num_computers"))
    with pytest.raises(ValueError, match="num_computers"):
        load_config_from_file(str(tmp_path / "outer.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_same_kind_of_run_as_with_trls_file(file: Path) -> None:
    import trl

    theirs = Path(trl.__file__).parent / "accelerate_configs" / f"{TRL_NAMES[file.stem]}.yaml"
    ours, theirs = load_config_from_file(str(file)), load_config_from_file(str(theirs))
    for name in ("distributed_type", "mixed_precision", "fsdp_config", "deepspeed_config", "use_cpu"):
        assert vars(ours)[name] == vars(theirs)[name], name
    for name in ("gpu_ids", "machine_rank", "rdzv_backend", "main_training_function", "downcast_bf16"):
        assert vars(ours)[name] in (vars(theirs)[name], None, False), name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("single_gpu", DistributedType.NO),
        ("ddp", DistributedType.MULTI_GPU),
        ("fsdp2", DistributedType.FSDP),
        ("zero3", DistributedType.DEEPSPEED),
    ],
)
def test_command_line_replaces_the_number_of_processes(name: str, kind: DistributedType) -> None:
    assert load_config_from_file(str(FOLDER / f"{name}.yaml")).distributed_type == kind
    arguments = launch_arguments(FOLDER / f"{name}.yaml", 6)
    assert arguments.num_processes == 6 and arguments.mixed_precision == "bf16"
    chosen = (arguments.multi_gpu, arguments.use_fsdp, arguments.use_deepspeed)
    assert chosen == tuple(
        kind == k for k in (DistributedType.MULTI_GPU, DistributedType.FSDP, DistributedType.DEEPSPEED)
    )


def test_fsdp2_shards_by_transformer_layer_and_saves_whole_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = prepare_multi_gpu_env(launch_arguments(FOLDER / "fsdp2.yaml", 8))
    for name, value in environment.items():
        if name.startswith(("FSDP_", "ACCELERATE_")):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert plugin.transformer_cls_names_to_wrap is None  # taken from the model
    assert plugin.state_dict_type.name == "FULL_STATE_DICT" and plugin.cpu_ram_efficient_loading
    assert not plugin.activation_checkpointing
    assert type(plugin.cpu_offload) is OffloadPolicy  # the one that offloads nothing


def test_zero3_reaches_deepspeed() -> None:
    arguments = launch_arguments(FOLDER / "zero3.yaml", 8)
    arguments.deepspeed_fields_from_accelerate_config = ""  # `accelerate launch` writes them down for its messages
    _, environment = prepare_deepspeed_cmd_env(arguments)
    prefix = "ACCELERATE_DEEPSPEED_"
    assert {name: environment[prefix + name] for name in ("ZERO_STAGE", "ZERO3_INIT", "ZERO3_SAVE_16BIT_MODEL")} == {
        "ZERO_STAGE": "3",
        "ZERO3_INIT": "true",
        "ZERO3_SAVE_16BIT_MODEL": "true",
    }
    assert environment[prefix + "OFFLOAD_OPTIMIZER_DEVICE"] == environment[prefix + "OFFLOAD_PARAM_DEVICE"] == "none"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
