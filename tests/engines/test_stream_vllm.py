# SPDX-License-Identifier: Apache-2.0
"""The gate on the streams of `vllm serve` as it comes, with and without speculative decoding, and training on them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import TrainerCallback

from duet_trl.engines.engine import Completion, Request, ServerError
from duet_trl.engines.server import GateServer
from duet_trl.engines.stream import StreamServer
from duet_trl.engines.stream_rollout import GATE, entropy_bound
from duet_trl.gate.parameters import GateRequest
from duet_trl.gate.replay import GateSpec, Outcome
from tests.engines.tiny_gate import MARKER, TinyGate, check_continued, random_prompts
from tests.runs import duet_trainer, logged
from tests.server_process import ServerProcess
from tests.test_trainer_server_lost import Wire
from tests.tiny import MODEL_VOCAB, tiny_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

CAP = 100
BOUND = 4.1  # nats, near the median of the bound on the tiny policy's entropy
SPECS = (
    GateSpec(16, 32, 8, poll_interval=4),
    GateSpec(8, 40, 12, poll_interval=8, entropy_threshold=BOUND),
    GateSpec(16, 24, 0, poll_interval=5, trim=False),
    GateSpec(16, 32, 8, poll_interval=4, abort=False, window=20),
)
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}'
SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": CAP}
GREEDY = SAMPLED | {"temperature": 0.0}
GENERATED = "vllm:generation_tokens"


def serving(model: Path, folder: Path, *arguments: str) -> ServerProcess:
    # The mode of log-probs that vLLM has by itself.
    return ServerProcess(model, folder, "--max-num-seqs", "64", *arguments, logprobs_mode="raw_logprobs")


@pytest.fixture(scope="module")
def plain(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    mended = "--worker-extension-cls", "duet_trl.engines.cpu_worker.CPUWorker"
    with serving(tiny_path, tmp_path_factory.mktemp("plain"), *mended) as process:
        yield process


@pytest.fixture(scope="module")
def speculative(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tiny_path, tmp_path_factory.mktemp("ngram"), "--speculative-config", NGRAM) as process:
        yield process


class BoundGate(TinyGate):
    """The oracle is shown what the client can know of the entropy: the bound from the five likeliest tokens."""

    def entropies(self, prompt: list[int], ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
        likeliest = logits.log_softmax(-1).topk(5).values.tolist()
        bound = np.array([entropy_bound(row, MODEL_VOCAB) for row in likeliest])
        return np.where(np.isin(logits.argmax(-1).numpy(), self.eos_ids), np.inf, bound)


def complete(client: GateServer, gate: TinyGate, requests: list[Request], sampling: dict) -> list[Completion]:
    ends = frozenset(gate.eos_ids)
    asked = [
        one.gate and GateRequest(one.gate, one.keep, MARKER, gate.sentinel, ends, prefix_length=len(one.prefix))
        for one in requests
    ]
    limits = [one.new_tokens for one in requests]
    found = client.complete([one.input_ids for one in requests], sampling, asked, gate.eos_ids, limits)
    done = []
    for choice in found:
        if isinstance(client, StreamServer):  # whose policy may sample the sentinel
            ids, stopped = choice.token_ids, choice.finish_reason == GATE
        else:
            stopped = choice.token_ids[-1:] == [gate.sentinel]
            ids = choice.token_ids[:-1] if stopped else choice.token_ids
        finish = "gate" if stopped else "eos" if ids[-1] in gate.eos_ids else "length"
        done.append(Completion(ids, finish, choice.logprobs[: len(ids)]))
    return done


def tokens(rollouts: list[Completion]) -> int:
    return sum(len(row.token_ids) for row in rollouts)


def in_all(kept: float, waste: float) -> float:
    """Tokens generated for a batch that keeps so many."""
    return kept / (1.0 - waste)


def streaming(process: ServerProcess, gate: TinyGate) -> StreamServer:
    client = StreamServer(process.url)
    client.automaton = gate.automaton
    return client


def requests(num_rows: int, specs: tuple[GateSpec, ...], begun: list[Completion] | None = None) -> list[Request]:
    """Some without a gate, some that continue the beginning of what was completed before."""
    random, made = np.random.default_rng(3), []
    for row, ids in enumerate(random_prompts(num_rows, seed=7, longest=30)):
        first = begun[row].token_ids if begun and row % 4 else []
        prefix = tuple(first[: int(random.integers(len(first)))]) if first else ()
        made.append(
            Request(ids, prefix, CAP, specs[row % len(specs)] if row % 5 else None, bool(random.random() < 0.4))
        )
    return made


@pytest.mark.parametrize("name", ["plain", "speculative"])
def test_sampled_rollouts_stop_where_algorithm_1_stops_them(request, tiny_path, name):
    process, gate = request.getfixturevalue(name), BoundGate(tiny_path)
    client, text = streaming(process, gate), "So \\boxed{42}"
    client.try_out(SAMPLED, gate.eos_ids, text, tiny_tokenizer()(text, add_special_tokens=False)["input_ids"])
    asked = requests(160, SPECS, complete(client, gate, requests(160, (None,)), SAMPLED))
    found = complete(client, gate, asked, SAMPLED)
    pairs = [*zip(asked, found, strict=True)]
    outcomes = {check_continued(gate, *pair) for pair in pairs}  # replays, and checks log-probs
    assert outcomes >= set(Outcome)
    early = {
        len(one.prefix) + len(row.token_ids) for one, row in pairs if one.gate is SPECS[1] and row.finish == "gate"
    }
    assert any(length % 4 for length in early)  # neither an abort nor the end of a grace window
    if name == "speculative":
        assert process.metric("vllm:spec_decode_num_accepted_tokens") > 100


def test_greedy_outcomes_are_those_of_the_gate_in_the_engine_with_and_without_speculation(
    server, plain, speculative, tiny_gate
):
    # The two likeliest tokens along these rollouts are 1e-3 nats apart or more: rounding decides none of them.
    asked = requests(150, (SPECS[0], *SPECS[2:]))
    inside = complete(server.client, tiny_gate, asked, GREEDY)
    assert {row.finish for row in inside} >= {"gate", "length"}
    for process in (plain, speculative):
        client, before = streaming(process, tiny_gate), process.metric(GENERATED)
        found = complete(client, tiny_gate, asked, GREEDY)
        assert [(row.token_ids, row.finish) for row in found] == [(row.token_ids, row.finish) for row in inside]
        generated = in_all(tokens(found), client.waste)
        # What the server has not counted yet is waste of the next batch, which here stops nothing itself.
        rest = complete(client, tiny_gate, requests(20, (None,)), GREEDY)
        generated += in_all(tokens(rest), client.waste)
        assert generated == pytest.approx(process.metric(GENERATED) - before, abs=0.01)
        assert generated > tokens(found) + tokens(rest)
        # Without gates the same tokens come, and those that a server is spared when the client hangs up.
        whole = complete(client, tiny_gate, [replace(one, gate=None) for one in asked], GREEDY)
        assert generated < tokens(whole) + tokens(rest)


def trainer_on(process: ServerProcess, model: Path, output_dir: Path, monkeypatch, **overrides):
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(process.weights))
    monkeypatch.delenv("DUET_SERVER_TOKEN", raising=False)
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": process.url, "engine": "openai"}
    return duet_trainer(model, output_dir, **{**server, **overrides})


def test_training_samples_from_the_weights_that_the_last_step_left(plain, tiny_path, tmp_path, monkeypatch):
    # The coin of the first step keeps what the gate would abort, that of the second does not.
    fates = {"per_device_train_batch_size": 16, "aborts_early": {"cold": (0.1, 0.7), "refit_every": 10}}
    trainer = trainer_on(plain, tiny_path, tmp_path, monkeypatch, max_steps=2, learning_rate=1e-2, **fates)
    before = plain.metric(GENERATED)
    trainer.train()
    differences = logged(trainer, "sampling/sampling_logp_difference/max")
    assert len(differences) == 2 and max(differences) < 1e-3
    for name in ("abort_rate", "trim_rate", "keep_rate"):
        assert max(logged(trainer, f"duet/{name}")) > 0, name
    kept, waste = logged(trainer, "duet/generated_tokens"), logged(trainer, "duet/waste_share")
    assert min(waste) >= 0
    assert sum(map(in_all, kept, waste)) < plain.metric(GENERATED) - before + 0.5
    greedy = trainer.sample(["Say 1 "], 2, temperature=0.0, max_tokens=10)
    plain.request("POST", "/update_weight_version", json={"new_version": "restarted"})
    assert trainer.sample(["Say 1 "], 2, temperature=0.0, max_tokens=10) == greedy
    assert plain.request("GET", "/weight_info").json()["weight_version"].endswith("-4")  # sent again


def test_a_server_that_would_keep_old_weights_is_refused(speculative, tiny_path, tmp_path, monkeypatch):
    with pytest.raises(ServerError, match="--worker-extension-cls duet_trl.engines.cpu_worker.CPUWorker"):
        trainer_on(speculative, tiny_path, tmp_path, monkeypatch)


class Failure(TrainerCallback):
    """Kills the server in the second step, behind the first tokens of six streams, and starts it again."""

    def __init__(self, process: ServerProcess, wire: Wire) -> None:
        self.process, self.wire = process, wire

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.wire.strike(6, self.process.launch)


def test_a_server_killed_in_mid_stream_and_started_again_loses_no_rollout_and_doubles_none(
    plain, tiny_path, tmp_path, monkeypatch, caplog
):
    plans = []
    with Wire(plain) as wire:
        run = {"max_steps": 3, "max_completion_length": 200, "learning_rate": 1e-2, "audit_log": True}
        run |= {"vllm_server_base_url": wire.url, "prompt_id_column": "name", "callbacks": [Failure(plain, wire)]}
        trainer = trainer_on(plain, tiny_path, tmp_path, monkeypatch, **run)
        judge = trainer.loop.judge

        def recorded(step):
            plans.append(sorted(filter(None, step.num_rollouts.tolist())))
            judge(step)

        trainer.loop.judge = recorded
        trainer.train()
        assert wire.struck.is_set() and caplog.text.count("The vLLM server was lost: ") == 1
    assert len(plans) == 3 == trainer.loop.num_steps
    # A server with the weights that it started with would be far off behind a step at this learning rate.
    differences = logged(trainer, "sampling/sampling_logp_difference/max")
    assert len(differences) == 3 and max(differences) < 1e-3
    total = 0
    for number, plan in enumerate(plans):
        rows = pq.read_table(tmp_path / "duet_audit" / f"step_{number + 1:06d}.parquet").to_pydict()
        assert sorted(Counter(rows["prompt"]).values()) == plan
        assert sum(rows["length"]) == logged(trainer, "duet/generated_tokens")[number]
        total += sum(rows["length"]) + sum(len(tiny_tokenizer()(text).input_ids) for text in rows["prompt"])
        assert logged(trainer, "num_tokens")[number] == total
    # The server that was started again counts from 0, and the last step is all its own.
    kept, waste = logged(trainer, "duet/generated_tokens"), logged(trainer, "duet/waste_share")
    assert min(waste) >= 0
    assert in_all(kept[-1], waste[-1]) < plain.metric(GENERATED) + 0.5
