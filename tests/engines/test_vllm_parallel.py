# SPDX-License-Identifier: Apache-2.0
"""Several workers behind one gate: tensor-parallel ranks, data-parallel ranks, and an engine shared by trainers.

No rank tells another what the gate decides. They must come to it alone, from the same tokens and parameters.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import requests
import torch
from safetensors.torch import save_file

from duet_trl.engines.server import GateServer
from duet_trl.gate.replay import split_sentinel
from tests import server_process
from tests.engines.parallel_run import (
    KEEP,
    NUM_ALIKE,
    NUM_CROWDED,
    OTHER_ENGINE,
    PROMPTS,
    SHORT_PROMPTS,
    SPEC_OF_ROW,
)
from tests.engines.tiny_gate import CAP, SPECS, TinyGate, assert_algorithm_1, replay_all
from tests.processes import forked, process_environment
from tests.server_process import GATE, GUARD, ServerProcess

pytestmark = pytest.mark.vllm

HELPER = Path(__file__).with_name("parallel_run.py")
SHARED = {"temperature": 1.0, "max_tokens": CAP}


def finished(folder: Path, *arguments: str, processes: int = 1) -> dict[str, dict]:
    """What the processes of the helper have written into their folder, by name."""
    done = forked([str(HELPER), *arguments], env=process_environment(), timeout=400, processes=processes)
    assert done.returncode == 0, done.stderr[-6000:]
    return {report.stem: json.loads(report.read_text()) for report in folder.glob("*.json")}


def changed_weights(gate: TinyGate, folder: Path) -> dict[str, torch.Tensor]:
    """Another policy with tied embeddings, as a folder that `reload_weights` takes."""
    folder.mkdir()
    save_file(weights := gate.changed(), folder / "model.safetensors")
    return weights


def logprob_difference(gate: TinyGate, weights: dict, prompts: list, ids: list, logprobs: list) -> float:
    """Largest difference between an engine's log-probabilities and those of the policy with these weights."""
    rows = zip(prompts, split_sentinel(ids, gate.sentinel)[0], logprobs, strict=True)
    found = [gate.logprobs(prompt, row, weights) - torch.tensor(actual[: len(row)]) for prompt, row, actual in rows]
    return torch.cat(found).abs().max().item()


# Tensor parallelism: one engine, two worker processes


@pytest.fixture(scope="module")
def tensor(tiny_gate: TinyGate, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("tensor")
    weights = changed_weights(tiny_gate, folder / "changed")
    return {**finished(folder, "tensor", str(tiny_gate.path), str(folder))["tensor0"], "weights": weights}


@pytest.mark.distributed
@pytest.mark.slow
def test_every_tensor_parallel_rank_samples_from_the_same_edited_logits(tensor):
    (first, calls, digest), second = tensor["ranks"]
    assert (first, second) == (0, [1, calls, digest])
    assert calls > 300


@pytest.mark.distributed
@pytest.mark.slow
def test_tensor_parallel_rollouts_are_stopped_where_algorithm_1_stops_them(tensor, tiny_gate):
    assert tensor["preemptions"] > 10
    assert_algorithm_1(tiny_gate, PROMPTS, tensor["crowded"]["ids"], SPEC_OF_ROW, KEEP)
    replay_all(tiny_gate, tensor["crowded"]["ids"], SPEC_OF_ROW, KEEP)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_two_tensor_parallel_ranks_generate_what_one_engine_does(tensor, tiny_gate, kind):
    alone, together = tensor["alone"][kind], tensor["together"][kind]
    same = sum(a == b for a, b in zip(alone, together, strict=True))
    assert same >= NUM_ALIKE - 2  # the ranks add in another order: a draw or an entropy on the edge may fall otherwise
    replay_all(tiny_gate, together, SPEC_OF_ROW[:NUM_ALIKE], KEEP[:NUM_ALIKE])
    assert kind == "greedy" or len({tuple(ids) for ids in together}) > NUM_ALIKE // 2


@pytest.mark.distributed
@pytest.mark.slow
def test_tensor_parallel_ranks_refuse_requests_made_for_another_engine(tensor, tiny_gate):
    assert tensor["refused"]["ids"] == [[tiny_gate.sentinel]] * len(OTHER_ENGINE)


@pytest.mark.distributed
@pytest.mark.slow
def test_tensor_parallel_ranks_load_their_parts_of_new_weights(tensor, tiny_gate):
    ids, logprobs = tensor["changed"]["ids"], tensor["changed"]["logprobs"]
    assert all(row[0] != tiny_gate.sentinel for row in ids)
    assert logprob_difference(tiny_gate, tensor["weights"], PROMPTS[:NUM_ALIKE], ids, logprobs) < 2e-4


# Data parallelism: one server, two engines


@pytest.fixture(scope="module")
def engines(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--data-parallel-size", "2", "--block-size", "32", "--max-num-batched-tokens", "4096")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "START_SECONDS", 2 * server_process.START_SECONDS)  # twice the processes
        with ServerProcess(tiny_path, tmp_path_factory.mktemp("server"), *GATE, *GUARD, *options) as process:
            yield process


def served_by(process: ServerProcess) -> dict[str, int]:
    """Rollouts that each engine of the server has finished."""
    answer = requests.get(f"{process.url}/metrics", headers=process.client.headers, timeout=60)
    lines = re.findall(r'vllm:request_success_total\{engine="(\d)".*} ([\d.]+)', answer.text)
    return {engine: sum(int(float(n)) for other, n in lines if other == engine) for engine in ("0", "1")}


def at_rank(process: ServerProcess, rank: int) -> GateServer:
    """A client whose requests all go to one engine of the server."""
    client = GateServer(process.url, process.token)
    client.headers["X-data-parallel-rank"] = str(rank)
    return client


@contextmanager
def shares(process: ServerProcess) -> Iterator[list[int]]:
    """Filled on leaving: the rollouts that each engine has finished in between."""
    found: list[int] = []
    before = served_by(process)
    yield found
    found += [count - before[engine] for engine, count in served_by(process).items()]


@pytest.mark.distributed
@pytest.mark.slow
def test_data_parallel_server_stops_rollouts_where_algorithm_1_stops_them(engines, tiny_gate):
    client = engines.client
    client.probe("math", tiny_gate.automaton.fingerprint, tiny_gate.sentinel, tiny_gate.eos_ids)
    rows = [tiny_gate.request(spec, keep) for spec, keep in zip(SPEC_OF_ROW, KEEP, strict=True)]
    with shares(engines) as counts:
        found = client.complete(PROMPTS, SHARED, rows, tiny_gate.eos_ids)
    assert min(counts) > 0 and sum(counts) == NUM_CROWDED
    ids = [completion.token_ids for completion in found]
    assert_algorithm_1(tiny_gate, PROMPTS, ids, SPEC_OF_ROW, KEEP)
    replay_all(tiny_gate, ids, SPEC_OF_ROW, KEEP)


@pytest.mark.distributed
@pytest.mark.slow
def test_both_engines_of_a_data_parallel_server_generate_the_same(engines, tiny_gate):
    rows = [tiny_gate.request(*row) for row in zip(SPEC_OF_ROW, KEEP, strict=True)][:NUM_ALIKE]

    def generate(client: GateServer, row: int) -> list[int]:
        seeded = {**SHARED, "seed": row}
        return client.complete([SHORT_PROMPTS[row]], seeded, [rows[row]], tiny_gate.eos_ids)[0].token_ids

    found = []
    for rank in (0, 1):
        with shares(engines) as counts, ThreadPoolExecutor(16) as pool:
            found.append(list(pool.map(partial(generate, at_rank(engines, rank)), range(NUM_ALIKE))))
        assert counts[rank] == sum(counts) == NUM_ALIKE
    assert sum(a == b for a, b in zip(*found, strict=True)) >= NUM_ALIKE - 2  # a draw or an entropy on the edge
    assert len({tuple(ids) for ids in found[0]}) > NUM_ALIKE // 2
    replay_all(tiny_gate, found[0], SPEC_OF_ROW[:NUM_ALIKE], KEEP[:NUM_ALIKE])


@pytest.mark.distributed
@pytest.mark.slow
def test_new_weights_reach_both_engines_of_a_data_parallel_server(engines, tiny_gate):
    folder = engines.weights / "changed"
    weights = changed_weights(tiny_gate, folder)
    rows = [replace(tiny_gate.request(SPECS[0], False), weights=str(folder))] * 64
    clients = [engines.client, at_rank(engines, 0), at_rank(engines, 1)]
    for client in clients:
        early = client.complete(PROMPTS[:64], SHARED, rows, tiny_gate.eos_ids)
        assert [completion.token_ids for completion in early] == [[tiny_gate.sentinel]] * 64
    engines.client.reload_weights(str(folder))
    for client in clients:  # the prompts are in the prefix caches, computed with the old weights
        found = client.complete(PROMPTS[:64], SHARED, rows, tiny_gate.eos_ids)
        ids, logprobs = [c.token_ids for c in found], [c.logprobs for c in found]
        assert all(row[0] != tiny_gate.sentinel for row in ids)
        assert logprob_difference(tiny_gate, weights, PROMPTS[:64], ids, logprobs) < 2e-4


# Tensor parallelism inside the trainer: each process is one rank


@pytest.mark.distributed
@pytest.mark.slow
def test_trainers_that_share_an_engine_gate_alike_and_sample_from_the_policy_they_train(tiny_path, tmp_path):
    first, second = finished(tmp_path, "train", str(tiny_path), str(tmp_path), processes=2).values()
    same = [{**one, "random_state": None} for one in (first, second)]
    assert same[0] == same[1]  # controller, weights, metrics, and every edited logit
    assert first["random_state"] != second["random_state"]  # dropout parts them, or that would show nothing
    assert first["moved"] > 1e-4
    # Dropout itself changes a log-probability by some 0.2 nats; a rank that attends to other tokens, by some 12.
    differences = first["logged"]["sampling/sampling_logp_difference/max"]
    assert max(differences[:2]) < 1e-3 and 1e-3 < max(differences[2:]) < 1.0
    for name in ("duet/abort_rate", "duet/trim_rate", "duet/keep_rate"):
        assert max(first["logged"][name]) > 0, name
    assert [len(row) for row in first["samples"]] == [1, 1, 1]  # three prompts over two processes
