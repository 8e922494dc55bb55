# SPDX-License-Identifier: Apache-2.0
"""Every block of code in README and docs runs, or its commands are ones that their programs accept."""

import argparse
import configparser
import importlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.arena import tasks
from tests.runs import count_fours, settings
from tests.server_process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
TOP = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
PAGES = sorted(
    [*TOP, *(page for room in ("docs", "benchmarks", "notebooks") for page in ROOT.glob(f"{room}/**/*.md"))]
)
RECIPES = ROOT / "recipes"
sys.path.insert(0, str(RECIPES))

POLICY = '"recipes/tiny_math/checkpoint"'
LOCAL_SUITES = {
    "math500": {"problem": "What is $6\\cdot 7$?", "answer": "42", "solution": "", "subject": "Algebra", "level": 1},
    "gsm8k": {"question": "What is 6 x 7?", "answer": "#### 42"},
}
# A page's blocks are one script. What would be fetched from the Hub, needs a GPU or takes minutes is replaced.
SCRIPTS: dict[str, dict[str, str]] = {
    "README.md": {
        '"Qwen/Qwen2.5-1.5B-Instruct"': POLICY,
        'load_dataset("trl-lib/DeepMath-103K", split="train")': "TRAIN",
        'use_vllm=True, vllm_mode="colocate"': "use_cpu=True, bf16=False, max_completion_length=16, max_steps=1",
    },
    "benchmarks/arena/README.md": {},
    "docs/evaluation.md": {"load_suite(name)": "load_suite(name, LOCAL[name])"},
    "docs/extending.md": {},
    "docs/from_grpo.md": {},
    "docs/own_task.md": {},
    "notebooks/data/README.md": {
        "max_steps=15": "max_steps=1",
        "max_completion_length=320": "max_completion_length=48",
    },
}
LANGUAGES = {"", "bash", "diff", "mermaid", "python", "yaml"}
"""Of every block; those without one are trees, formulas and what a command printed."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its first line, its language ("": none) and its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}" if self.page.is_relative_to(ROOT) else f"{self.line}"


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, in order; of one language or of all."""
    text = page.read_text()
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.M | re.S)
    every = [Block(page, text[: one.start(3)].count("\n") + 1, one[2], one[3]) for one in found]
    return [one for one in every if language in (None, one.language)]


def run_python(found: Sequence[Block], replaced: dict[str, str] | None = None, **names: object) -> dict[str, object]:
    """Run the blocks one after the other, as one script, with replacements of which each must be needed."""
    names = {"__name__": "__main__", **names}
    left = dict(replaced or {})
    for block in found:
        text = block.text
        for old, new in (replaced or {}).items():
            if old in text:
                left.pop(old, None)
                text = text.replace(old, new)
        exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), names)
    assert left == {}, "no block has what is to be replaced"
    return names


def commands(text: str) -> list[list[str]]:
    """The words of each command, without variables in front of it and `&` behind it."""
    found = []
    for line in filled_in(text).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        if words:
            found.append(words[: -1 if words[-1] == "&" else None])
    return found


def filled_in(text: str) -> str:
    """A word in the place of each <word or words> that the reader fills in, which a shell would take for a file."""
    return re.sub(r"<[a-z][\w. ]*>", "filled_in", text)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that has `recipes/`, as the root of a clone."""
    (tmp_path / "recipes").symlink_to(RECIPES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def taken_for_granted(name: str, folder: Path) -> dict[str, object]:
    """What a page has without saying where from: data of a run, files of suites, a trainer."""
    from datasets import Dataset

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    asked = [{"role": "user", "content": "Compute $3+4-2$."}]
    data = Dataset.from_list([{"prompt": asked, "solution": "$5$"}] * 32)
    if name == "README.md":
        return {"TRAIN": data}
    if name == "benchmarks/arena/README.md":  # what is appended to tasks.py
        return {**vars(tasks), "TASKS": dict(tasks.TASKS)}
    if name != "docs/evaluation.md":
        return {}
    local = {suite: str(folder / f"{suite}.jsonl") for suite in LOCAL_SUITES}
    for suite, row in LOCAL_SUITES.items():
        Path(local[suite]).write_text(json.dumps(row))
    config = DUETGRPOConfig(**settings(folder / "out"))
    trainer = DUETGRPOTrainer("recipes/tiny_math/checkpoint", count_fours, args=config, train_dataset=data)
    return {"LOCAL": local, "config": config, "trainer": trainer}


def test_every_page_with_python_is_run() -> None:
    assert {str(page.relative_to(ROOT)) for page in PAGES if blocks(page, "python")} == SCRIPTS.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_of_a_page_runs_as_one_script(name: str, clone: Path) -> None:
    names = run_python(blocks(ROOT / name, "python"), SCRIPTS[name], **taken_for_granted(name, clone))
    if name == "benchmarks/arena/README.md":
        problems = names["TASKS"]["reverse_135m"].problems(tasks.REPORT)
        lists = [one.key.removeprefix("reverse: ").removesuffix(" =").split(", ") for one in problems]
        assert len(problems) == 60
        assert all(one.accepts(", ".join(words[::-1])) for one, words in zip(problems, lists, strict=True))
    if name == "notebooks/data/README.md":  # what docs/quickstart.md runs on what the script left
        from duet_trl.__main__ import main

        assert main(["estimate", "out"]) == 0


EXTENDING = {"class RestSolved": 30, "class TableEngine": 60}
"""What a page promises to be short: lines of code of a block, blank ones left out."""


def test_the_examples_of_extending_md_are_short() -> None:
    for begin, most in EXTENDING.items():
        (block,) = (one for one in blocks(ROOT / "docs/extending.md", "python") if begin in one.text)
        assert len(block.text.split("\n")) - block.text.split("\n").count("") <= most, begin


def test_the_method_and_the_engine_of_extending_md_save_and_resume(clone: Path) -> None:
    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    names = run_python(blocks(ROOT / "docs/extending.md", "python"))
    engine = names["partial"](names["TableEngine"], table=names["table"])
    own = {"method": names["RestSolved"], "engine": lambda: engine}

    def trained(kind: str, folder: str, steps: int, resume: bool = False) -> Any:
        changed = {"output_dir": folder, "max_steps": steps, "save_steps": 2, "lr_scheduler_type": "constant"}
        config = DUETGRPOConfig(**names["settings"] | changed, **({"method": "own"} if kind == "method" else {}))
        policy, data = names["policy"], names["data"]
        given = {kind: own[kind]()}
        trainer = DUETGRPOTrainer(policy, names["even_length"], args=config, train_dataset=data, **given)
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.state.global_step == steps
        return trainer, given[kind]

    whole, method = trained("method", "whole", 4)
    trained("method", "parts", 2)
    resumed, restored = trained("method", "parts", 4, resume=True)
    assert restored.state_dict() == method.state_dict()
    last, expected = (one.state.log_history[3] for one in (resumed, whole))
    for name in ("step", "loss", "reward", "duet/num_rollouts/mean", "duet/resting_prompts"):
        assert last[name] == expected[name], name
    trained("engine", "engine", 2)
    trainer, _ = trained("engine", "engine", 4, resume=True)
    assert trainer.engine.syncs == 2  # its weights are the run's, before each of its steps


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_that_is_checked(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("block", [one for page in PAGES for one in blocks(page, "diff")], ids=str)
def test_both_sides_of_a_swap_import(block: Block) -> None:
    lines = block.text.splitlines()
    assert {line[0] for line in lines} == {"-", "+"}
    for line in lines:
        exec(line[1:], {})


@pytest.mark.parametrize("block", [one for page in PAGES for one in blocks(page, "yaml")], ids=str)
def test_yaml_of_a_grid_is_one(block: Block, tmp_path: Path) -> None:
    from experiment import plan

    (tmp_path / "own.yaml").write_text(block.text)
    grid = yaml.safe_load(block.text)
    assert len(plan(tmp_path / "own.yaml", tmp_path / "out")) == len(grid["seeds"]) * len(grid["runs"])


class Parsed(Exception):
    """The command line was accepted; nothing else is to run."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Sequence[str]], None]:
    """Runs a script or a package up to where argparse has accepted its arguments; SystemExit where it has not."""
    parse_args = argparse.ArgumentParser.parse_args

    def stop(*arguments: object, **more: object) -> None:
        parse_args(*arguments, **more)
        raise Parsed

    def run(script: str, words: Sequence[str]) -> None:
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
        monkeypatch.setattr(sys, "argv", [script, *words])
        with pytest.raises(Parsed):
            if script.endswith(".py"):
                runpy.run_path(str(ROOT / script), run_name="__main__")
            else:
                importlib.import_module(f"{script}.__main__").main()
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)

    return run


def make(words: Sequence[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), flags=re.M))
    assert {word for word in words if "=" not in word} <= targets


def pip(words: Sequence[str]) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    extras = re.fullmatch(r"\.\[([a-z,]+)\]", words[2])[1].split(",")
    assert list(words[:2]) == ["install", "-e"] and set(extras) <= set(parser["options.extras_require"])


def accelerate(words: Sequence[str]) -> None:
    from accelerate.commands.launch import launch_command_parser

    options = launch_command_parser().parse_args(words[1:])
    assert words[0] == "launch"
    recipe(options.training_script, options.training_script_args)


def recipe(script: str, words: Sequence[str]) -> None:
    """A recipe with configurations: its own parser, which reads and checks them."""
    from script_arguments import parse

    assert (ROOT / script).exists()
    parse([*(word for word in words if word != "..."), "--use_cpu", "true"])


def experiment(words: Sequence[str]) -> None:
    from experiment import plan

    parser = argparse.ArgumentParser()
    for name in ("--grid", "--output_dir"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", default="*")
    options = parser.parse_args(words)
    assert plan(options.grid, options.output_dir or Path("out"), options.only)


def pretrained(words: Sequence[str]) -> None:
    named = [] if "--config" in words else ["--config", "recipes/configs/pretrained_135m.yaml"]
    recipe("recipes/pretrained.py", [*named, *words])


def torchrun(words: Sequence[str]) -> None:
    from torch.distributed.run import get_args_parser

    assert get_args_parser().parse_args(words).training_script == "train.py"  # the reader's own


def curl(words: Sequence[str]) -> None:
    """Where it goes and what it sends; `test_curl_gets_the_answers_that_the_page_gives` runs it."""
    assert any(word.startswith("http://127.0.0.1:8000/") for word in words)
    assert all(json.loads(words[number + 1]) for number, word in enumerate(words) if word == "-d")


def shell(words: Sequence[str]) -> None:
    """Built-ins of the shell: `bash -n` has read them."""


CHECKS = {
    "accelerate": accelerate,
    "curl": curl,
    "export": shell,
    "git": shell,
    "kill": shell,
    "make": make,
    "pip": pip,
    "source": shell,
    "torchrun": torchrun,
}
SCRIPT_CHECKS = {
    "recipes/experiment.py": experiment,
    "recipes/pretrained.py": pretrained,
}
SERVERS = ("vllm", "trl")
"""Programs whose parsers import vLLM: checked by a test of their own."""
BASH = [one for page in PAGES for one in blocks(page, "bash")]


@pytest.mark.parametrize("block", BASH, ids=str)
def test_commands_of_a_block_are_accepted(
    block: Block,
    parse_only: Callable,
    clone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subprocess.run(["bash", "-n"], input=filled_in(block.text), text=True, check=True)
    monkeypatch.setenv("DUET_SERVER_TOKEN", "a-token-for-these-tests")
    (clone / "problems.jsonl").write_text("{}")
    for program, *words in commands(block.text):
        if program == "python" and words[0] == "-m":
            parse_only(words[1], words[2:])
        elif program == "python" and words[0] not in SCRIPT_CHECKS:
            parse_only(words[0], words[1:])
        elif program == "python":
            SCRIPT_CHECKS[words[0]](words[1:])
        elif program == "duet-trl":
            parse_only("duet_trl", words)
        elif program not in SERVERS:
            CHECKS[program](words)


@pytest.mark.vllm
@pytest.mark.parametrize("block", [one for one in BASH if "vllm" in one.text and "serve" in one.text], ids=str)
def test_servers_accept_their_commands(block: Block) -> None:
    from trl.scripts.vllm_serve import build_command, make_parser
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    served = [words for words in commands(block.text) if words[0] in SERVERS]
    for program, command, *words in served:
        if program == "trl":  # it reads its own part and passes the others on
            assert command == "vllm-serve"
            _, _, _, command, *words = build_command(*make_parser().parse_args_and_config(words, True))
        assert command == "serve" and make_arg_parser(FlexibleArgumentParser()).parse_args(words).model_tag
    assert served


@pytest.mark.slow
@pytest.mark.vllm
def test_curl_gets_the_answers_that_the_page_gives(server: ServerProcess) -> None:
    (block,) = (one for one in BASH if one.text.startswith("curl"))
    lines = block.text.replace("\\\n", " ").replace("http://127.0.0.1:8000", server.url).splitlines()
    for line in lines:
        expected = re.search(r"# (\d{3})", line)[1]
        if "-w" not in line:
            line = line.replace("curl", "curl -o /dev/null -w '%{http_code}'", 1)
        environment = os.environ | {"DUET_SERVER_TOKEN": server.token}
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=60)
        assert done.stdout.strip() == expected, line
    assert len(lines) == 3
