# SPDX-License-Identifier: Apache-2.0
"""`make install-check`: what a user gets who installs the wheel without extras, with new packages and with old ones.

Installs the wheel of `make build` into an empty environment, with the newest versions that setup.cfg allows and then
with the lowest, and runs `tests/install_run.py` there, in a folder from which the repository cannot be imported.
It trains with DUET and compares the method grpo with `GRPOTrainer`, which scales accumulated gradients by the version
of transformers.

PyTorch is the same for both, that of `make install`: which of its builds is the one for CPUs depends on the package
index that it comes from, and every other version would bring gigabytes of CUDA.
"""

import argparse
import configparser
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from packaging.requirements import Requirement

from tests.test_imports import NEEDS_EXTRA

ROOT = Path(__file__).resolve().parent.parent


def lowest() -> list[str]:
    """The lower bound of every requirement in setup.cfg as a pin; PyTorch is left out."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    lines = [line.strip() for line in parser["options"]["install_requires"].splitlines()]
    pins = []
    for requirement in (Requirement(line) for line in lines if line and not line.startswith("#")):
        (bound,) = [part.version for part in requirement.specifier if part.operator == ">="]
        if requirement.name != "torch":
            pins.append(f"{requirement.name}=={bound}")
    return pins


def pip(command: str, *arguments: str, python: Path | None = None) -> None:
    """Run this environment's pip, for another interpreter if one is named."""
    other = ["--python", str(python)] if python else []
    options = ["--disable-pip-version-check", "--no-input", "-q"]
    # Without the repository in sight, whose metadata would pass for an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [sys.executable, "-P", "-m", "pip", *other, command, *options, *arguments]
    subprocess.run(program, env=environment, check=True)


def check(name: str, folder: Path, wheel: Path, pins: list[str], torch: str, torch_index: str) -> None:
    """Give the environment these versions and use the wheel there."""
    begin = time.perf_counter()
    print(f"==> {name} versions", flush=True)
    python = folder / "environment" / "bin" / "python"
    pip("install", torch, *(["--index-url", torch_index] if torch_index else []), python=python)
    pip("install", str(wheel), torch, *pins, python=python)
    # Offline, but for an address where nothing listens: a push must fail as it does without a network.
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
    # -I: neither PYTHONPATH nor the script's folder can bring the repository in.
    command = [str(python), "-I", "install_run.py", json.dumps(sorted(NEEDS_EXTRA))]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    print(f"==> {name} versions work ({time.perf_counter() - begin:.0f} s)", flush=True)


def check_description(folder: Path, files: list[Path]) -> None:
    """Whether a package index would take the files and show the README."""
    venv.create(folder / "index", with_pip=False)
    python = folder / "index" / "bin" / "python"
    pip("install", "twine", python=python)
    subprocess.run([str(python), "-I", "-m", "twine", "check", "--strict", *map(str, files)], check=True)


def main() -> None:
    """Check all environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the sdist lies beside it")
    parser.add_argument("--torch", default="torch", help="requirement of PyTorch")
    parser.add_argument("--torch_index", default="", help="package index of PyTorch's CPU builds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="install_check_") as name:
        folder = Path(name)
        check_description(folder, [args.wheel.resolve(), *args.wheel.resolve().parent.glob("*.tar.gz")])
        for script in ("install_run.py", "tiny.py"):
            shutil.copy(ROOT / "tests" / script, folder)
        venv.create(folder / "environment", with_pip=False)
        check("newest", folder, args.wheel.resolve(), [], args.torch, args.torch_index)
        check("lowest", folder, args.wheel.resolve(), lowest(), args.torch, args.torch_index)


if __name__ == "__main__":
    main()
