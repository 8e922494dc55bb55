# SPDX-License-Identifier: Apache-2.0
"""Steps of any shape over real groups of processes: no collective hangs, and every rollout is trained once.

The groups live as long as the module; a watchdog kills them where a step does not end, and names the case.
"""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.exchange import Exchange
from duet_trl.gate.replay import GateMismatch
from duet_trl.loop import Loop
from duet_trl.methods.method import Method
from duet_trl.rollouts import Job, Judgement, LocalRollout, Prompt, Prompts, Query, Rollouts, StepRecord
from duet_trl.seams import train_rows
from tests.processes import free_port

PATIENCE = 60.0
"""Seconds after which a step of a few milliseconds hangs."""
STARTING = 300.0
"""Seconds that imports may take on a busy machine."""


END = 0


@dataclass(frozen=True)
class Case:
    """A generation step.

    Attributes:
        counts (list[list[int]]): Rollouts of each prompt in each round.
        queries (list[int]): Questions to the model before each round.
        aborted (list[bool]): Whether a rollout leaves the gradient, by its number; shorter: the others stay.
        chunks (int): Micro-batches of a process.
        windows (int): Optimizer steps that share them.
        interleaved (bool): Whether rollouts are dealt one by one.
        mismatch (int | None): Process whose engine runs another gate.
    """

    counts: list[list[int]]
    queries: list[int]
    aborted: list[bool]
    chunks: int
    windows: int
    interleaved: bool
    mismatch: int | None


@dataclass(frozen=True)
class Delivery:
    """Rollouts for the processes that want them: those of each process; rollout r is held by process r mod W."""

    wanted: list[list[int]]


class Parcel:
    """Notes that it was opened."""

    opened: ClassVar[list[int]] = []

    def __init__(self, row: int) -> None:
        self.row = row

    def __setstate__(self, state: dict[str, int]) -> None:
        self.row = state["row"]
        Parcel.opened.append(self.row)


def deliver(delivery: Delivery, exchange: Exchange) -> tuple[list[int], list[int]]:
    """Rollouts that came, and those that were unpickled for it."""
    rows = range(exchange.process_index, 20, exchange.num_processes)
    Parcel.opened.clear()
    found = exchange.rollouts({row: Parcel(row) for row in rows}, delivery.wanted)
    assert all(parcel.row == row for row, parcel in found.items())
    return sorted(found), sorted(Parcel.opened)


class Scripted(Method):
    """Asks for what the case says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asked: set[int] = set()

    def jobs(self, of: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """The next round, its questions first."""
        number = 0 if done is None or not len(done) else int(done.round.max()) + 1
        if number == len(self.case.counts):
            return []
        if self.case.queries[number] and number not in self.asked:
            self.asked.add(number)
            return [Query(0, (1 + query,)) for query in range(self.case.queries[number])]
        return [Job(prompt) for prompt, count in enumerate(self.case.counts[number]) for _ in range(count)]

    def judge(self, done: Rollouts) -> Judgement:
        """Aborted rollouts leave the gradient."""
        kept = np.ones(len(done), dtype=bool)
        kept[: len(self.case.aborted)] = ~np.array(self.case.aborted, dtype=bool)[: len(done)]
        return replace(Judgement.of(done.rewards), in_gradient=kept, in_divisor=kept)


class Host:
    """Generates and scores with the collectives of TRL: each needs as many rows on every process."""

    reward_weights = torch.ones(1)

    def __init__(self, case: Case, exchange: Exchange) -> None:
        self.case, self.exchange = case, exchange

    def generate(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> list[LocalRollout]:
        """A rollout of prompt p holds 1 + p as often as its length says, and an end."""
        ids = [[1 + job.prompt] * (1 + job.prompt % 3) + [END] for job in jobs]
        ids += ids[-1:] * padding
        self.exchange.accelerator.gather(torch.tensor([len(one) for one in ids]))
        wrong = self.exchange.process_index == self.case.mismatch
        return [LocalRollout([9], one, "text", None, wrong and not row, False, True) for row, one in enumerate(ids)]

    def score(self, step: StepRecord, jobs: Sequence[Job], rollouts: Sequence[LocalRollout]) -> torch.Tensor:
        """The reward is the prompt."""
        return self.exchange.accelerator.gather(torch.tensor([[float(job.prompt)] for job in jobs]))

    def share_logs(self, rows: np.ndarray) -> dict[str, list]:
        """No columns."""
        return {}

    def answer(self, step: StepRecord, queries: Sequence[Query]) -> list[np.ndarray]:
        """Each question's token, answered where the placement of the trainer puts it."""
        process, processes = self.exchange.process_index, self.exchange.num_processes
        own = np.arange(process, len(queries), processes)
        return self.exchange.in_order(own, [np.array([float(queries[row].ids[0])]) for row in own])


def run(case: Case, exchange: Exchange) -> dict[str, Any]:
    """One step up to the log-probabilities; what this process knows of it."""
    host, method = Host(case, exchange), Scripted(case)
    loop = Loop(method, host, exchange, None, 10_000, 100, 1_000, {END}, case.interleaved)
    step = StepRecord(Prompts([Prompt(str(p), {"prompt": str(p)}) for p in range(len(case.counts[0]))], 1, 0, None))
    loop.run(step)
    loop.judge(step)
    args = SimpleNamespace(steps_per_generation=case.chunks * case.windows, gradient_accumulation_steps=case.chunks)
    args.mask_truncated_completions = args.exclude_zero_variance_groups = False
    args.max_completion_length = 100
    train_rows.count_tokens(step, args, teaches_ending=False)
    train_rows.place(step, args, exchange.num_processes)
    process = exchange.process_index
    _, generated, _ = train_rows.replay_batch(step, exchange, process, END, mask_truncated=False)
    rows = step.packed_rows[process]
    lengths = [len(ids) if row >= 0 else 0 for row, ids in zip(rows, generated[1], strict=True)]
    step.captured = [
        torch.tensor([[row, -length, length] for row, length in zip(rows, lengths, strict=True)], dtype=torch.float64)
    ]
    train_rows.collect_logps(step, exchange)
    return {
        "prompts": step.done.prompt.tolist(),
        "rewards": step.done.rewards.tolist(),
        "answers": [float(answer[0]) for answer in step.done.answers],
        "rows": rows.tolist(),
        "ids": generated[1],
        "kept": step.num_kept_tokens,
        "sum_logps": np.nan_to_num(step.sum_logps).tolist(),
    }


def work(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    """Answer cases from a pipe until it ends."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=10))  # the watchdog is the parent's
    exchange = Exchange(Accelerator(cpu=True))
    assert exchange.num_processes == world_size
    pipe.send("ready")
    while True:
        case = pipe.recv()
        try:
            pipe.send(deliver(case, exchange) if isinstance(case, Delivery) else run(case, exchange))
        except (GateMismatch, RuntimeError) as error:
            pipe.send(str(error))


class Group:
    """A group of processes over gloo."""

    def __init__(self, size: int) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.test_collectives"])
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, other = context.Pipe()
            process = context.Process(target=work, args=(rank, size, port, other), daemon=True)
            process.start()
            self.pipes.append(pipe)
            self.processes.append(process)

    def wait(self) -> None:
        """Until every process has imported what it needs and found the others."""
        for pipe in self.pipes:
            assert pipe.poll(STARTING) and pipe.recv() == "ready"

    def run(self, case: Case | Delivery, patience: float = PATIENCE) -> list:
        """What each process knows of the step afterwards."""
        for pipe in self.pipes:
            pipe.send(case)
        found = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(patience):
                self.end()
                raise AssertionError(f"process {rank} of {self.size} hangs in {case}")
            found.append(pipe.recv())
        return found

    def end(self) -> None:
        """Kill the processes of the group."""
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def by_size() -> Iterator[dict[int, Group]]:
    """Groups of two, three and four processes."""
    found = {size: Group(size) for size in (2, 3, 4)}
    try:
        for group in found.values():
            group.wait()
        yield found
    finally:
        for group in found.values():
            group.end()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to three rounds; prompts without a rollout, rounds without a question, and steps that abort everything."""
    num_prompts = draw(st.integers(1, 6))
    counts = draw(st.lists(st.lists(st.integers(0, 4), min_size=num_prompts, max_size=num_prompts), max_size=3))
    counts = [one for one in counts if sum(one)] or [[1] * num_prompts]
    total = sum(map(sum, counts))
    pattern = st.one_of(st.just([True] * total), st.just([]), st.lists(st.booleans(), min_size=total, max_size=total))
    return Case(
        counts=counts,
        queries=[draw(st.integers(0, 5)) for _ in counts],
        aborted=draw(pattern),
        chunks=draw(st.integers(1, 3)),
        windows=draw(st.integers(1, 2)),
        interleaved=draw(st.booleans()),
        mismatch=draw(st.sampled_from([None] * 7 + [0, 1])),
    )


def check(case: Case, found: list) -> None:
    """Every process knows the same of the step, and each kept rollout is trained exactly once, with its own tokens."""
    if case.mismatch is not None and any(sum(one) > case.mismatch for one in case.counts):  # it has a rollout
        # One process found the rollout that ran another gate; the others end with it, and quote it.
        for rank, one in enumerate(found):
            elsewhere = (
                f"Another process has failed, and this one ends with it. process {case.mismatch}: GateMismatch: "
            )
            assert "was stopped at" in one and one.startswith(elsewhere) == (rank != case.mismatch)
        return
    prompts = [prompt for one in case.counts for prompt, count in enumerate(one) for _ in range(count)]
    kept = ~np.array(case.aborted or [False] * len(prompts))
    lengths = np.array([2 + prompt % 3 for prompt in prompts])
    trained = [row for one in found for row in one["rows"] if row >= 0]
    assert sorted(trained) == np.flatnonzero(kept).tolist()
    for one in found:
        assert one["prompts"] == prompts
        assert one["rewards"] == [float(prompt) for prompt in prompts]
        assert one["answers"] == [1.0 + query for count in case.queries for query in range(count)]
        assert one["kept"] == lengths[kept].sum()
        assert one["sum_logps"] == np.where(kept, -lengths, 0.0).tolist()
        assert len(one["rows"]) == len(found[0]["rows"]) and len(one["rows"]) % (case.chunks * case.windows) == 0
        for row, ids in zip(one["rows"], one["ids"], strict=True):
            assert ids == ([1 + prompts[row]] * (lengths[row] - 1) + [END] if row >= 0 else [END])


@pytest.mark.distributed
@pytest.mark.slow
def test_ragged_rows_and_rounds_never_hang_a_collective(by_size):
    @settings(max_examples=80, deadline=None)
    @given(cases(), st.sampled_from([2, 3, 4]))
    def over_any_step(case: Case, size: int) -> None:
        check(case, by_size[size].run(case))

    over_any_step()


@pytest.mark.distributed
@pytest.mark.slow
def test_a_rollout_is_sent_to_the_processes_that_want_it_alone(by_size):
    wanted = [[0, 1, 5], [], [5, 19]]
    assert by_size[3].run(Delivery(wanted)) == [(rows, rows) for rows in wanted]
