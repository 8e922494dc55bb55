# SPDX-License-Identifier: Apache-2.0
"""What comes in, and what goes out: no pickles, no code of models, no path out of a folder, no secrets."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.test_repository import ROOT, relative

sys.path.insert(0, str(ROOT / "recipes"))

from evaluation_run import folder_name  # noqa: E402
from experiment import plan  # noqa: E402
from run import load_tokenizer  # noqa: E402
from script_arguments import parse  # noqa: E402

from duet_trl.evaluation.suites import check_suite  # noqa: E402
from tests.runs import count_fours, duet_trainer, prompts, trained  # noqa: E402

SHIPPED = sorted(path for folder in ("duet_trl", "recipes") for path in (ROOT / folder).rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SETTINGS = sorted((ROOT / "recipes").rglob("*.yaml"))

# Pickles

PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
PICKLING_CALLS = {"read_pickle", "to_pickle"}


def pickling(source: str) -> Iterator[str]:
    """Everything in a program that reads or writes a pickle."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"import {name.name}" for name in names if name.name.split(".")[0] in PICKLING)
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in PICKLING:
                yield f"from {module}"
            case ast.Call(func=ast.Attribute(value=value, attr=called), keywords=keywords):
                given = {word.arg: ast.unparse(word.value) for word in keywords}
                owner = ast.unparse(value)
                loads_torch = owner == "torch" and called == "load" and given.get("weights_only") != "True"
                loads_numpy = called == "load" and given.get("allow_pickle", "False") != "False"
                if loads_torch or loads_numpy or (owner, called) == ("torch", "save") or called in PICKLING_CALLS:
                    yield f"{owner}.{called}"


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "def f():\n    from cloudpickle import dumps",
        "import joblib.externals",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.save(state, path)",
        "np.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=trusted)",
        "pd.read_pickle(path)",
    ],
)
def test_a_pickle_is_seen(bad: str) -> None:
    assert len(list(pickling(bad))) == 1


def test_what_is_no_pickle_is_none() -> None:
    assert (
        list(pickling("import json\njson.load(f)\nnp.load(p)\ntorch.load(p, weights_only=True)\nnp.save(p, x)")) == []
    )


@pytest.mark.parametrize("path", SHIPPED, ids=relative)
def test_no_pickle_is_read_or_written(path: Path) -> None:
    assert list(pickling(path.read_text())) == []


# Code that comes with a model


def trusting(source: str) -> list[int]:
    """Lines of a program that let the code of a model run, whatever the user says."""
    name, found = "trust_remote_code", []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg="trust_remote_code", value=value):
                pairs = [(name, value)]
            case ast.Dict(keys=keys, values=values):
                pairs = [(k.value, v) for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant)]
            case ast.arguments(args=args, defaults=defaults) if defaults:
                pairs = [(arg.arg, value) for arg, value in zip(args[-len(defaults) :], defaults, strict=True)]
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.Constant() as value):
                pairs = [(target, value)]
            case _:
                continue
        found += [v.lineno for key, v in pairs if key == name and isinstance(v, ast.Constant) and v.value is not False]
    return found


@pytest.mark.parametrize(
    "bad",
    [
        "load(name, trust_remote_code=True)",
        "load(name, **{'trust_remote_code': True})",
        "def load(name, trust_remote_code=True): ...",
        "class C:\n    trust_remote_code: bool = True",
        "load(name, trust_remote_code=None)",  # transformers asks whoever sits there
    ],
)
def test_trust_is_seen(bad: str) -> None:
    assert len(trusting(bad)) == 1


@pytest.mark.parametrize("path", SHIPPED, ids=relative)
def test_nothing_trusts_the_code_of_a_model_unasked(path: Path) -> None:
    assert trusting(path.read_text()) == []


@pytest.mark.parametrize("path", [*NOTEBOOKS, *SETTINGS], ids=relative)
def test_no_configuration_and_no_notebook_does(path: Path) -> None:
    assert "trust_remote_code" not in path.read_text()


@pytest.fixture
def model_with_code(tiny_path: Path, tmp_path: Path, code_of_models: None) -> tuple[Path, Path]:
    """A model and a tokenizer that need code of their own, and the file that this code would write."""
    folder, ran = shutil.copytree(tiny_path, tmp_path / "model"), tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\n"
    (folder / "own.py").write_text(
        f"{code}from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM\n"
        "class OwnConfig(Qwen3Config):\n    model_type = 'own'\n"
        "class OwnForCausalLM(Qwen3ForCausalLM):\n    config_class = OwnConfig\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    own = {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": classes}
    config, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    named = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | named))
    return folder, ran


def recipe_arguments(model: Path, output_dir: Path, *options: str) -> list[str]:
    smoke = str(ROOT / "recipes" / "configs" / "math_tiny_smoke.yaml")
    given = ["--model_name_or_path", str(model), "--output_dir", str(output_dir)]
    return ["--config", smoke, *given, *options]


def test_a_model_that_needs_code_is_refused_in_the_words_of_transformers(model_with_code, tiny_path, tmp_path) -> None:
    folder, ran = model_with_code
    _, config, model = parse(recipe_arguments(folder, tmp_path / "out"))
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        load_tokenizer(config, model)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        duet_trainer(folder, tmp_path / "out")
    assert not ran.exists()
    _, config, model = parse(recipe_arguments(folder, tmp_path / "out", "--trust_remote_code", "true"))
    assert type(load_tokenizer(config, model)).__name__ == "OwnTokenizer" and ran.exists()
    # As in TRL, its field and the arguments of the model both trust it.
    for trusted in ({"trust_remote_code": True}, {"model_init_kwargs": {"trust_remote_code": True}}):
        trainer = duet_trainer(folder, tmp_path / "out", max_steps=1, **trusted)
        assert type(trainer.model).__name__ == "OwnForCausalLM" and trainer.engine.setup is not None
    trainer.train()


# Paths

OUT = "../../out"


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_names_out_of_a_data_set_write_nothing_outside_the_output_folder(tiny_path, tmp_path) -> None:
    output_dir = tmp_path / "deep" / "below" / "run"
    names = [f"{OUT}/{row}" if row % 2 else f"{tmp_path}/absolute/{row}" for row in range(32)]
    data = prompts().remove_columns("name").add_column("name", names)
    asked = {"prompt_id_column": "name", "audit_log": True, "audit_columns": ["name"], "log_completions": True}
    asked |= {"run_name": f"{OUT}/run", "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    trainer = trained(tiny_path, output_dir, data=data, **asked)
    trainer.save_model()
    trainer.create_model_card(model_name=f"{OUT}/name", dataset_name=f"{OUT}/data")
    written = files_below(tmp_path)
    assert {path for path in written if not path.startswith("deep/below/run/")} == set()
    assert {"duet_audit", "completions", "checkpoint-1"} <= {path.split("/")[3] for path in written}
    # and what this package writes there is no pickle
    own = {path for path in written if "duet_" in path}
    assert {Path(path).suffix for path in own} == {".json", ".safetensors", ".parquet"}


@pytest.mark.parametrize("name", [OUT, "..", ".", "/absolute", "a/b", "a\0b", "-o", ""])
def test_a_suite_is_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a suite's name may have letters"):
        check_suite(name, str(tmp_path / "own.jsonl"))


@pytest.mark.parametrize("model", [OUT, "..", ".", "...", "/", "/absolute", "a/../..", "C:\\a", ""])
def test_the_folder_of_a_models_results_is_one_below(model: str, tmp_path: Path) -> None:
    assert (tmp_path / folder_name(model)).resolve().parent == tmp_path


@pytest.mark.parametrize("cell", [OUT, "..", ".", "/absolute", "a/b"])
def test_a_cell_is_no_path(cell: str, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump({"script": "x.py", "runs": {cell: {"method": "grpo"}}, "seeds": [1]}))
    with pytest.raises(ValueError, match=r"its name may hold no '/'"):
        plan(grid, tmp_path / "out")


# Secrets

SERVER_TOKEN, HUB_TOKEN = "server-token-that-nobody-may-read", "hf_TokenThatNobodyMayRead"
SECRETS = {"DUET_SERVER_TOKEN": SERVER_TOKEN, "HF_TOKEN": HUB_TOKEN}


def leaks(*texts: bytes) -> list[str]:
    return [secret for secret in SECRETS.values() for text in texts if secret.encode() in text]


def recipe(script: str, folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """A recipe with both tokens in its environment, all that it logs included."""
    environment = {**os.environ, **SECRETS, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment |= {"TRANSFORMERS_VERBOSITY": "debug", "HF_HUB_VERBOSITY": "debug", "HF_DEBUG": "1"}
    command = [sys.executable, str(ROOT / "recipes" / script), *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=400)


def test_no_token_is_in_a_pickle_of_the_configuration(tiny_path, tmp_path) -> None:
    """transformers writes one beside the model, `training_args.bin`, and pushes it."""
    trainer = duet_trainer(tiny_path, tmp_path, hub_token=HUB_TOKEN, rewards=count_fours)
    trainer.save_model()
    assert HUB_TOKEN.encode() not in (tmp_path / "training_args.bin").read_bytes()
    assert trainer.args.hub_token == HUB_TOKEN  # which pushes


@pytest.mark.slow
def test_a_run_writes_and_prints_no_token(tiny_path, tmp_path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    rows = [{"problem": f"What is ${i} + {i}$?", "answer": str(2 * i)} for i in range(16)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--hub_token", HUB_TOKEN, "--push_to_hub", "true", "--hub_model_id", "me/model", "--audit_log", "true")
    options += ("--log_completions", "true", "--save_strategy", "steps", "--save_steps", "2")
    arguments = [*recipe_arguments(tiny_path, out), "--dataset_name", str(data), *options]
    done = recipe("math_qwen3.py", tmp_path, *arguments)
    assert b"was not pushed" in done.stderr, done.stderr[-3000:]  # there is no Hub here; all else was done
    written = files_below(tmp_path)
    for name in ("README.md", "run.json", "recipe.yaml", "training_args.bin", "checkpoint-2/training_args.bin"):
        assert f"out/{name}" in written
    assert leaks(done.stdout, done.stderr) == []
    assert [path for path in written if leaks((tmp_path / path).read_bytes())] == []
