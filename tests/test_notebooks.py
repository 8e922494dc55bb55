# SPDX-License-Identifier: Apache-2.0
"""Every notebook executes on a CPU without the Hub; what it prints is checked against independent results."""

import ast
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from transformers import AutoTokenizer

from duet_trl.evaluation.prompts import BOXED_SUFFIX
from duet_trl.gate.replay import GateSpec
from notebooks import execute
from tests.gate.oracle import algorithm_1
from tests.recipes.paper_runs import paper_run, write_paper_runs
from tests.test_imports import private_imports

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = (
    "01_allocation_and_gate",
    "02_duet_tiny_cpu",
    "03_duet_colab_t4",
    "04_estimate_your_logs",
    "05_tables_from_runs",
)
MAX_CELLS = 20
LIBRARIES = {*"duet_trl trl datasets transformers peft torch numpy pandas matplotlib IPython".split()}
PUBLIC_ALL_THE_SAME = {"_", "__file__", "__version__", "__stdout__"}
every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def cells(name):
    return nbformat.read(execute.HERE / f"{name}.ipynb", as_version=4).cells


def code_of(name):
    return {cell.id: cell.source for cell in cells(name) if cell.cell_type == "code"}


def untidy(notebook):
    """What in a notebook is left over from running it, or breaks the form."""
    found = [] if set(notebook.metadata) == {"kernelspec"} else [f"metadata {sorted(notebook.metadata)}"]
    for index, cell in enumerate(notebook.cells):
        if set(cell.metadata) - {"tags"}:
            found.append(f"cell {index}: metadata {sorted(cell.metadata)}")
        if cell.cell_type == "code":
            if cell.outputs or cell.execution_count is not None:
                found.append(f"cell {index}: output")
            if index == 0 or notebook.cells[index - 1].cell_type != "markdown":
                found.append(f"cell {index}: no prose before it")
    if len(notebook.cells) > MAX_CELLS:
        found.append(f"{len(notebook.cells)} cells")
    return found


@every_notebook
def test_a_notebook_is_short_stripped_and_has_prose_before_each_step(name):
    notebook = nbformat.read(execute.HERE / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert untidy(notebook) == []
    assert notebook.metadata.kernelspec.name == "python3"
    # Title and parameters aside, the prose before a step says what to look at; the last step only writes the record.
    steps = [cell for cell in notebook.cells if cell.cell_type == "markdown"][1:-1]
    assert [cell.id for cell in steps if "ook at** " not in cell.source] == []
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert [cell.id for cell in tagged] == ["parameters"]


def private_or_foreign(source):
    """Names with a leading underscore, and imports of libraries that notebooks do without."""
    found = private_imports(source)
    for node in ast.walk(ast.parse(source)):
        name = {ast.Attribute: "attr", ast.Name: "id", ast.keyword: "arg", ast.alias: "name"}.get(type(node))
        parts = (node.__dict__[name] or "").split(".") if name else []
        found += [part for part in parts if part.startswith("_") and part not in PUBLIC_ALL_THE_SAME]
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
        tops = {module.split(".")[0] for module in modules} - LIBRARIES - set(sys.stdlib_module_names)
        found += sorted(tops - {"recipes", "paper"})
    return found


@every_notebook
def test_a_notebook_uses_public_names_only(name):
    assert {ident: found for ident, source in code_of(name).items() if (found := private_or_foreign(source))} == {}


@every_notebook
def test_a_notebook_names_no_folder_of_a_machine_and_its_parameters_are_plain_values(name):
    """Papermill writes other values behind the parameters: nothing may be derived from them in their own cell."""
    for cell in cells(name):
        assert re.findall(r"""["'(`](?:/|~/|[A-Z]:\\)\w+""", cell.source) == []
    for statement in ast.parse(code_of(name)["parameters"]).body:
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)


@every_notebook
def test_without_the_package_the_installation_asks_for_the_repository(name):
    source = code_of(name)["install"]
    bare = [sys.executable, "-I", "-S", "-c"]  # no site-packages: duet_trl cannot be imported
    refused = subprocess.run([*bare, f"repository, engine = '', 'vllm'\n{source}"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "ValueError: duet_trl is not installed. Set `repository`" in refused.stderr


@every_notebook
def test_with_the_package_the_installation_starts_no_program(name):
    """Without PATH neither git nor anything else could be started; pip would report through the hook."""
    watch = (
        "import sys\nsys.addaudithook(lambda event, args: event == 'subprocess.Popen' and sys.exit(f'started {args}'))"
    )
    code = code_of(name)
    body = f"{watch}\n{code['parameters']}\nengine, precision = 'vllm', 'fp32'\n{code['install']}"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def estimate(**changes):
    """Names that the estimate of 03 computes from its parameters, which need no model."""
    code, names = code_of("03_duet_colab_t4"), {}
    exec(code["parameters"], names)
    names |= changes
    exec(code["estimate"], names)
    return names


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_the_t4_notebook_is_planned_for_half_an_hour_to_an_hour_and_sixteen_gigabytes(engine):
    names = estimate(engine=engine)
    assert 30 <= names["minutes"] <= 60
    assert sum(names["gibibytes"].values()) <= 15
    # 64 rollouts x 400 tokens x 6 x 0.6e9 operations / 13e12 a second = 7.1 s; 16 micro-batches x 0.4 s = 6.4 s
    assert names["training"] == pytest.approx(64 * 400 * 3.6e9 / 13e12 + 6.4)
    assert names["generation"] == pytest.approx(400 * {"vllm": 0.025, "transformers": 0.05}[engine])
    assert estimate(engine=engine, steps=160)["minutes"] - names["minutes"] == pytest.approx(
        80 * names["estimated_step"] / 60
    )


def test_the_t4_notebook_pins_what_the_cpu_set_pins():
    names = {"engine": "transformers"}
    (statement,) = (
        node for node in ast.parse(code_of("03_duet_colab_t4")["install"]).body if "pins = " in ast.unparse(node)
    )
    exec(ast.unparse(statement), names)
    assert {pin.partition("==")[0] for pin in names["pins"]} >= {"trl", "transformers", "peft", "math-verify"}
    assert set(names["pins"]) <= set((ROOT / "requirements" / "cpu.txt").read_text().splitlines())


def test_the_t4_notebook_asks_for_the_answer_as_the_paper_does_and_pushes_nothing_by_itself():
    names = {}
    exec(code_of("03_duet_colab_t4")["parameters"], names)
    assert names["instruction"] == BOXED_SUFFIX
    assert names["push_to"] == ""


def test_unknown_names_are_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(ValueError, match="no notebook '06'"):
        execute.execute("06", tmp_path)
    with pytest.raises(SystemExit) as exit_:
        execute.main(["02", "-p", "stepz=3"])
    assert exit_.value.code == 2
    assert "no parameter stepz. It has repository, engine" in capsys.readouterr().err


def record(path):
    """What the last cell of an executed notebook printed: one line of JSON."""
    streams = [out for out in nbformat.read(path, as_version=4).cells[-1].outputs if out.output_type == "stream"]
    # A kernel may send a line and its end in two pieces.
    return json.loads("".join(out.text for out in streams).splitlines()[-1])


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    return record(execute.execute("01_allocation_and_gate", tmp_path_factory.mktemp("executed")))


def test_01_shows_the_dearest_rounded_plan_within_the_budget(by_hand):
    sigma, length = np.array(by_hand["sigma"]), np.array(by_hand["mean_length"])
    duals = np.geomspace(1e-6, 1e3, 20_000)[:, None]
    plans = np.clip(np.rint(sigma / np.sqrt(duals * length)), 1, 32)  # Eq. 4, shape (20,000, M)
    for fraction, counts in by_hand["allocations"].items():
        within = plans @ length <= float(fraction) * by_hand["num_generations"] * length.sum()
        assert plans[within][np.argmax(plans[within] @ length)].tolist() == counts
    assert by_hand["allocations"].keys() >= {"1.0", "0.5", "0.25"}


def test_01_shows_by_hand_what_the_package_computes(by_hand):
    price, times = by_hand["price"], by_hand["answer_times"]
    assert price["package"] == pytest.approx(price["by_hand"], rel=1e-12) and price["package"] > 0
    assert price["counts"] == [4] * len(price["lengths"])
    for end, _, *by_walking in times["walked"]:
        assert (times["S"][end // 8], times["F"][end // 8]) == pytest.approx(by_walking)
    # Between 48 and 160 half of the rollouts go on, for 0.25 rewards: 0.25 / (112 x 0.5) = 0.0045 a token.
    assert {price: cut for price, cut in times["cuts"] if price > 0.005} == {0.008: 48}
    assert {cut for price, cut in times["cuts"] if price < 0.004} == {160}


def test_01_walks_every_outcome_of_the_gate_as_algorithm_1_says(by_hand):
    spec = GateSpec(poll_threshold=16, abort_threshold=44, grace_window=12, poll_interval=4)
    for name, pieces in by_hand["pieces"].items():
        boxes = ["".join(pieces[:end]).count("}") for end in range(len(pieces) + 1)]
        ends = [end for end in range(1, len(boxes)) if boxes[end] > boxes[end - 1]]
        found = algorithm_1(spec, range(len(pieces)), name.endswith("keep"), [math.inf] * len(pieces), ends)
        shown = by_hand["outcomes"][name], by_hand["lengths"][name], by_hand["marker_at"][name]
        assert shown == (found.outcome.name, len(found.ids), found.marker_at), name
    assert set(by_hand["outcomes"].values()) == {"NATURAL", "ANSWERED", "KEPT", "ABORTED"}
    looping = [pieces for name, pieces in by_hand["pieces"].items() if name.startswith("loops")]
    assert looping[0] == looping[1]  # only the coin differs


def test_01_shows_that_the_weight_removes_the_bias_at_the_price_of_equation_8(by_hand):
    assert by_hand["truth"] == pytest.approx(0.2 * -0.8 + 0.8 * 0.3)
    for epsilon, result in by_hand["simulated"].items():
        epsilon = float(epsilon)
        natural, dropped, weighted = result["bias"]
        errors = result["error"]
        assert abs(natural) < 4 * errors[0]
        assert abs(weighted) < 4 * errors[2]
        # E[kept]: 0.8 and 0.2 eps are the shares that remain. A ratio of means, so of the order 1 / 64 off.
        kept = (0.8 * 0.3 + 0.2 * epsilon * -0.8) / (0.8 + 0.2 * epsilon)
        assert dropped == pytest.approx(kept - by_hand["truth"], abs=5e-3)
        assert dropped > 30 * errors[1]
        # Independent coins make Eq. 8 an equality: rate (1 - eps) / eps x second moment / batch.
        exact = 0.2 * (1 - epsilon) / epsilon * (0.8**2 + 0.5**2) / 64
        assert result["bound"] == pytest.approx(exact, rel=1e-12)
        assert result["added"] == pytest.approx(exact, rel=0.1)


SHORT_02 = {"steps": 4, "pool_size": 48, "held_out_problems": 10, "evaluate_every": 0}


def check_budget(values):
    """A plan keeps its budget at every step."""
    assert len(values["planned_tokens"]) == values["steps"]
    for planned, budget in zip(values["planned_tokens"], values["budget_tokens"], strict=True):
        assert planned <= budget * (1 + 1e-9)
    assert all(tokens > 0 for tokens in values["generated_tokens"])


# Under pytest the stdout of a kernel has no file descriptor, as on Colab; vLLM asks for one.
@pytest.mark.vllm
@pytest.mark.slow
def test_02_trains_and_its_records_agree(tmp_path):
    values = record(execute.execute("02_duet_tiny_cpu", tmp_path, SHORT_02 | {"engine": "vllm"}, timeout=500))
    check_budget(values)
    assert (values["engine"], values["steps"]) == ("vllm", SHORT_02["steps"])
    assert values["rollouts"] == [64] * 4  # 16 prompts x 8 x 0.5
    assert values["audit_tokens"] == values["generated_tokens"]
    assert sum(values["outcomes"].values()) == sum(values["rollouts"])
    assert {"natural", "answered"} <= values["outcomes"].keys() <= {"natural", "answered", "kept", "aborted"}
    first, last = values["held_out"]
    assert (first[0], last[0]) == (0, SHORT_02["steps"])
    assert all(low <= value <= high for _, value, low, high in values["held_out"])
    assert values["change"][0] == pytest.approx(last[1] - first[1])
    assert first[1] > 0.1  # the shipped policy solves some: 0.43 of a large sample


@pytest.mark.vllm
@pytest.mark.slow
def test_03_trains_a_tiny_model_on_local_problems(tmp_path):
    """On vLLM; the run whose push fails trains on the transformers engine."""
    values = record(execute.execute("03_duet_colab_t4", tmp_path, {"engine": "vllm", "steps": 4}, timeout=500))
    check_budget(values)
    assert (values["engine"], values["precision"], values["steps"]) == ("vllm", "fp32", 4)
    assert values["rollouts_per_prompt"][:3] == [4.0, 4.0, 4.0]
    assert values["verdicts"] == [1.0, 1.0, 0.0, 0.0]
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "tokenizer.json"} <= set(values["files"])
    assert all(0 < norm < math.inf for norm in values["loss_grad_norm"])  # the adapters got a gradient at every step
    before, after = np.array(values["before"]), np.array(values["after"])
    assert before.shape == after.shape == (12, 2)
    assert before.mean() > 0.1
    assert values["change"][0] == pytest.approx(after.mean() - before.mean())
    assert values["change"][1] <= values["change"][0] <= values["change"][2]


def test_04_estimates_the_bundled_log(tmp_path):
    values = record(execute.execute("04_estimate_your_logs", tmp_path))
    files = sorted((execute.HERE / "data" / "grpo_log" / "completions").glob("*.parquet"))
    rows = pd.concat([pd.read_parquet(path) for path in files])
    assert values["completions"] == len(rows) == 960
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "recipes" / "tiny_math" / "checkpoint")
    texts = [text if isinstance(text, str) else text[0]["content"] for text in rows.completion]
    assert values["tokens"] == sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in texts)
    groups = rows.assign(prompt=rows.prompt.astype(str)).groupby(["step", "prompt"]).first_box_reward
    useless = (groups.max() == groups.min()).mean()
    assert values["zero_variance"] == pytest.approx(useless)
    share = {(marker, budget): tokens for marker, budget, tokens in values["projected"]}
    assert share[None, 1.0] == 1.0 and share[None, 0.5] == 0.5
    assert share["math", 0.5] == pytest.approx(share["math", 1.0] / 2) and share["math", 1.0] < 0.9


def test_05_computes_a_table_from_runs(tmp_path):
    runs = write_paper_runs(
        tmp_path / "runs", methods=("grpo", "duet"), budgets=(0.5,), seeds=(0, 1), steps=10, surrogates=False
    )
    values = record(execute.execute("05_tables_from_runs", tmp_path, {"runs": str(runs), "paper_table": "table6"}))
    (table,) = values["paper"]
    for method in ("grpo", "duet"):
        last = [paper_run(method, 0.5, seed, 10).log[-1]["held_out/math500/mean@4"] for seed in (0, 1)]
        (row,) = (line for line in table.splitlines() if line.startswith(f"| +{method.upper()} "))
        assert f"{100 * sum(last) / 2:.1f}" in row.split("|")[3]


@pytest.mark.slow
def test_05_makes_the_runs_itself(tmp_path):
    values = record(
        execute.execute(
            "05_tables_from_runs", tmp_path, {"cells": ["grpo_50/seed_1", "abort_only/seed_1"]}, timeout=900
        )
    )
    assert sorted(values["runs"]) == [["abort_only", 1], ["grpo_50", 1]]
    (table,) = values["paper"]
    assert table.startswith("Table 2. ")
