# SPDX-License-Identifier: Apache-2.0
"""accelerate reads every configuration of recipes/accelerate as it is meant: no key is ignored, none is misspelt."""

import argparse
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType

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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_loads_and_every_key_is_known(file: Path) -> None:
    config = load_config_from_file(str(file))  # refuses unknown keys of the outer level
    assert config.mixed_precision == "bf16" and config.num_machines == 1 and not config.use_cpu
    assert unknown_keys(file) == set()


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
