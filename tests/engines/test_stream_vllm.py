# SPDX-License-Identifier: Apache-2.0
"""The gate on the streams of `vllm serve` as it comes, with and without speculative decoding, and training on them."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from duet_trl.engines.engine import Completion, Request, ServerError
from duet_trl.engines.server_engine import ServerEngine
from duet_trl.engines.stream import StreamServer, entropy_bound
from duet_trl.engines.stream_engine import StreamEngine
from duet_trl.exchange import Exchange
from duet_trl.gate.replay import GateSpec, Outcome
from tests.engines.tiny_gate import TinyGate, check_continued, random_prompts
from tests.runs import duet_trainer, logged
from tests.server_process import ServerProcess
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
ROOMY = ("--max-num-seqs", "64", "--logprobs-mode", "raw_logprobs")  # the mode that vLLM has by itself
SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": CAP}
GREEDY = SAMPLED | {"temperature": 0.0}


@pytest.fixture(scope="module")
def plain(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    mended = "--worker-extension-cls", "duet_trl.engines.vllm.CPUWorker"
    with ServerProcess(tiny_path, tmp_path_factory.mktemp("plain"), *ROOMY, *mended) as process:
        yield process


@pytest.fixture(scope="module")
def speculative(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arguments = *ROOMY, "--speculative-config", NGRAM
    with ServerProcess(tiny_path, tmp_path_factory.mktemp("ngram"), *arguments) as process:
        yield process


class BoundGate(TinyGate):
    """The oracle is shown what the client can know of the entropy: the bound from the five likeliest tokens."""

    def entropies(self, prompt: list[int], ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
        likeliest = logits.log_softmax(-1).topk(5).values.tolist()
        bound = np.array([entropy_bound(row, MODEL_VOCAB) for row in likeliest])
        return np.where(np.isin(logits.argmax(-1).numpy(), self.eos_ids), np.inf, bound)


def engine_of(process: ServerProcess, gate: TinyGate, sampling: dict, *, streams: bool = True) -> ServerEngine:
    def turn(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        _, ids, logprobs, _ = engine.complete(prompts, None, 1)
        return ids, [[value for (value,) in row] for row in logprobs]

    text = "So \\boxed{42}"
    stream = {"text": (text, tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]), "report": lambda _: None}
    client = StreamServer(process.url) if streams else process.client
    engine = (StreamEngine if streams else ServerEngine)(
        *(turn, gate.setup, gate.eos_ids, CAP, lambda sampling: nullcontext()),
        connection=SimpleNamespace(gate=client, weights="", check_reload=lambda: None),
        sampling=lambda: sampling,
        send=lambda: None,
        exchange=Exchange(Accelerator(cpu=True)),
        process=0,
        timeout=60.0,
        **(stream if streams else {}),
    )
    return engine


def requests(num_rows: int, specs: tuple[GateSpec, ...], begun: list[Completion] | None = None) -> list[Request]:
    random, prompts = np.random.default_rng(3), random_prompts(num_rows, seed=7, longest=30)
    made = []
    for row, ids in enumerate(prompts):
        first = begun[row].token_ids if begun else []
        prefix = tuple(first[: int(random.integers(len(first)))]) if first and row % 4 else ()
        spec = specs[row % len(specs)] if row % 5 else None
        made.append(Request(ids, prefix, CAP, spec, bool(random.random() < 0.4), number=row))
    return made


@pytest.mark.parametrize("name", ["plain", "speculative"])
def test_sampled_rollouts_stop_where_algorithm_1_stops_them(request, tiny_path, name):
    process, gate = request.getfixturevalue(name), BoundGate(tiny_path)
    engine = engine_of(process, gate, SAMPLED)
    begun = engine.generate(requests(160, (None,)))
    asked = requests(160, SPECS, begun)
    found = engine.generate(asked)
    outcomes = [check_continued(gate, *one) for one in zip(asked, found, strict=True)]  # replays, and checks log-probs
    assert {*outcomes} >= set(Outcome)
    early = [
        len(one.prefix) + len(done.token_ids)
        for one, done in zip(asked, found, strict=True)
        if one.gate is SPECS[1] and done.finish == "gate"
    ]
    assert any(length % 8 not in (0, 4) for length in early)  # neither an abort nor the end of a grace window
    if name == "speculative":
        assert process.metric("vllm:spec_decode_num_accepted_tokens") > 100


def test_greedy_outcomes_are_those_of_the_gate_in_the_engine_with_and_without_speculation(
    server, plain, speculative, tiny_gate
):
    asked = requests(150, (SPECS[0], *SPECS[2:]))
    inside = engine_of(server, tiny_gate, GREEDY, streams=False).generate(asked)
    for process in (plain, speculative):
        engine = engine_of(process, tiny_gate, GREEDY)
        found = engine.generate(asked)
        assert [(one.token_ids, one.finish) for one in found] == [(one.token_ids, one.finish) for one in inside]
        assert 0 <= engine._connection.gate.waste < 0.1


def test_training_samples_from_the_weights_that_the_last_step_left(plain, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(plain.weights))
    monkeypatch.delenv("DUET_SERVER_TOKEN", raising=False)
    trainer = duet_trainer(
        *(tiny_path, tmp_path),
        **{"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": plain.url, "engine": "openai"},
        **{"max_steps": 2, "learning_rate": 1e-2, "per_device_train_batch_size": 16},
        aborts_early={"cold": (0.1, 0.7)},
    )
    trainer.train()
    differences = logged(trainer, "sampling/sampling_logp_difference/max")
    assert len(differences) == 2 and max(differences) < 1e-3
    for name in ("abort_rate", "trim_rate", "keep_rate"):
        assert max(logged(trainer, f"duet/{name}")) > 0, name
    assert all(0 <= share < 0.2 for share in logged(trainer, "duet/waste_share"))
    assert trainer.sample(["Say 1 "], 2, temperature=0.0, max_tokens=10)[0][0]


def test_a_server_that_would_keep_old_weights_is_refused(speculative, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(speculative.weights))
    monkeypatch.delenv("DUET_SERVER_TOKEN", raising=False)
    with pytest.raises(ServerError, match="--worker-extension-cls duet_trl.engines.vllm.CPUWorker"):
        duet_trainer(
            *(tiny_path, tmp_path),
            **{"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": speculative.url, "engine": "openai"},
        )
