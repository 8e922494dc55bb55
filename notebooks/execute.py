# SPDX-License-Identifier: Apache-2.0
"""Execute each notebook from top to bottom, in a separate kernel and folder.

    python notebooks/execute.py                    all of them, on a CPU, without the Hub
    python notebooks/execute.py 01 03              some of them
    python notebooks/execute.py 03 --real          as they stand: 03 then wants a GPU and the Hub
    python notebooks/execute.py 02 -p steps=10     with another value in the parameters cell

One line per notebook; executed copies are written to outputs/notebooks. The exit status is 1 if a notebook failed.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError
from traitlets.config import Config

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.ipynb")))
TIMEOUT = 7200
"""Maximum seconds of one cell: twice the longest training that a notebook promises."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
ENVIRONMENT = {
    # One thread and one small cache for the engine, as in recipes/tiny_math/cpu.py; read only where vLLM is used.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # A kernel called python3 in the user's home may belong to another environment.
    "JUPYTER_PREFER_ENV_PATH": "1",
}
LOCAL_PROBLEMS = {"train": 48, "held_out": 12}


def main(argv: Sequence[str] | None = None) -> int:
    """Execute the notebooks that the command line names; 0 if all of them ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"notebooks or what their names begin with; none: {', '.join(NAMES)}")
    parser.add_argument("--all", action="store_true", help="all notebooks, which is the default as well")
    parser.add_argument("--real", action="store_true", help="with their own parameters, and with access to the Hub")
    parser.add_argument("--output_dir", type=Path, default=ROOT / "outputs" / "notebooks")
    parser.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="JSON, or text")
    args = parser.parse_args(argv)
    try:
        names = NAMES if args.all else select(args.names)
        given = dict(parse_parameter(text) for text in args.parameter)
        for name in names:
            check_parameters(name, given)
    except ValueError as error:
        parser.error(str(error))
    failed = []
    for name in names:
        print(f"{name}: running ...", flush=True)
        began = time.perf_counter()
        try:
            path = execute(name, args.output_dir, given, real=args.real)
        except (papermill.PapermillExecutionError, CellTimeoutError, RuntimeError) as error:  # also a dead kernel
            failed.append(name)
            print(f"{name}: FAILED after {time.perf_counter() - began:.0f} s: {last_line(error)}", flush=True)
        else:
            print(f"{name}: done in {time.perf_counter() - began:.0f} s, {shown(path)}", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} notebooks ran" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


def execute(
    name: str,
    output_dir: Path,
    parameters: dict[str, Any] | None = None,
    *,
    real: bool = False,
    timeout: int = TIMEOUT,
) -> Path:
    """Execute one notebook in a fresh kernel, in a temporary folder that is gone afterwards.

    Args:
        name (str): Its name without the suffix.
        output_dir (Path): Folder of the executed copy.
        parameters (dict[str, Any] | None): Values for its parameters cell, which win over the local ones.
        real (bool): Neither local parameters nor a barred Hub.
        timeout (int): Maximum seconds of one cell.

    Returns:
        Path: The executed copy; after an error it ends at the cell that failed.

    Raises:
        ValueError: If there is no such notebook, or it has no such parameter.
        papermill.PapermillExecutionError: If a cell raised.
    """
    if name not in NAMES:
        raise ValueError(f"there is no notebook {name!r}. Choose one of {', '.join(NAMES)}.")
    source, output_dir = HERE / f"{name}.ipynb", Path(output_dir).resolve()
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / source.name
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        values = ({} if real else local_parameters(name, Path(folder))) | (parameters or {})
        check_parameters(name, values)
        with environment(ENVIRONMENT if real else ENVIRONMENT | OFFLINE):
            papermill.execute_notebook(
                source,
                path,
                parameters=values,
                kernel_name="python3",
                cwd=folder,
                progress_bar=False,
                execution_timeout=timeout,
                # Sockets in the file system instead of open ports.
                config=Config({"KernelManager": {"transport": "ipc"}}),
            )
    return path


def local_parameters(name: str, folder: Path) -> dict[str, Any]:
    """Parameters under which a notebook runs in minutes on a CPU without the Hub.

    Args:
        name (str): Name of the notebook.
        folder (Path): Where data are written that it needs.

    Returns:
        dict[str, Any]: Values for its parameters cell; none where it runs as it stands.
    """
    if name != "03_duet_colab_t4":
        return {}
    return {
        "engine": "transformers",
        "model_name": str(ROOT / "recipes" / "tiny_math" / "checkpoint"),
        "train_data": str(write_problems(folder / "train.jsonl", "train", LOCAL_PROBLEMS["train"])),
        "held_out_data": str(write_problems(folder / "held_out.jsonl", "held_out", LOCAL_PROBLEMS["held_out"])),
        "instruction": "",  # this policy was never asked to box its answer: it always does
        "extra_eos_tokens": ["<|im_end|>"],
        "precision": "fp32",
        "steps": 6,
        "prompts_per_step": 16,  # three steps are an epoch of the 48 problems
        "rollouts_per_micro_batch": 32,
        "max_completion_length": 160,
        "train_problems": LOCAL_PROBLEMS["train"],
        "held_out_problems": LOCAL_PROBLEMS["held_out"],
        "samples_per_problem": 2,
        "learning_rate": 1e-3,
        "lora_rank": 8,
    }


def write_problems(path: Path, split: str, count: int) -> Path:
    """Sums of the tiny task as a file with GSM8K's columns: `question`, and `answer` with the gold behind ####."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from recipes.tiny_math.task import sample_problems

    rows = [
        {"question": problem.question, "answer": f"Worked from left to right.\n#### {problem.answer}"}
        for problem in sample_problems(split, count, seed=0)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def select(beginnings: Sequence[str]) -> tuple[str, ...]:
    """The notebooks whose names begin so, in the order given; all of them for none.

    Raises:
        ValueError: If one stands for no notebook or for several.
    """
    chosen = []
    for text in beginnings:
        wanted = Path(text).stem if text.endswith(".ipynb") else text
        found = [name for name in NAMES if name.startswith(wanted)]
        if len(found) != 1:
            raise ValueError(f"{text!r} stands for {found or 'no notebook'}. Choose from {', '.join(NAMES)}.")
        chosen += found
    return tuple(chosen) or NAMES


def parse_parameter(text: str) -> tuple[str, Any]:
    """Name and value of `name=value`; the value is JSON where it reads as such, else text."""
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"a parameter is given as NAME=VALUE, got {text!r}.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def check_parameters(name: str, values: dict[str, Any]) -> None:
    """Refuse values for which the parameters cell of a notebook has no name: papermill would only warn.

    Raises:
        ValueError: Names what is unknown and what there is.
    """
    cells = nbformat.read(HERE / f"{name}.ipynb", as_version=4).cells
    source = "\n".join(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", []))
    known = re.findall(r"^(\w+) = ", source, flags=re.M)
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}. It has {', '.join(known)}.")


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """While active, these variables are set for kernels that start; what the caller has set already wins."""
    added = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def last_line(error: Exception) -> str:
    """What went wrong in one line: the exception of the cell, or of the kernel."""
    if isinstance(error, papermill.PapermillExecutionError):
        return f"cell {error.cell_index}: {error.ename}: {error.evalue}"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"


def shown(path: Path) -> str:
    """A path as seen from the working directory, where it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
