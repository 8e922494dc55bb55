# SPDX-License-Identifier: Apache-2.0
"""Steps of any shape over real groups of processes: no collective hangs, and every rollout is trained once.

The groups live as long as the test; a watchdog kills them where a step does not end, and names the case.
"""

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collective_worker import END, Case, Delivery, work

PATIENCE = 60.0
"""Seconds after which a step of a few milliseconds hangs."""
STARTING = 300.0
"""Seconds that imports may take on a busy machine."""


class Group:
    """A group of processes over gloo."""

    def __init__(self, size: int) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.collective_worker"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
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


@contextmanager
def groups(*sizes: int) -> Iterator[dict[int, Group]]:
    """Groups of several sizes that end with the block."""
    found = {size: Group(size) for size in sizes}
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
def test_ragged_rows_and_rounds_never_hang_a_collective():
    with groups(2, 3, 4) as by_size:

        @settings(max_examples=150, deadline=None)
        @given(cases(), st.sampled_from([2, 3, 4]))
        def over_any_step(case: Case, size: int) -> None:
            check(case, by_size[size].run(case))

        over_any_step()


@pytest.mark.distributed
@pytest.mark.slow
def test_a_rollout_is_sent_to_the_processes_that_want_it_alone():
    with groups(3) as by_size:
        assert by_size[3].run(Delivery([[0, 1, 5], [], [5, 19]])) == [
            ([0, 1, 5], [0, 1, 5]),
            ([], []),
            ([5, 19], [5, 19]),
        ]


@pytest.mark.distributed
@pytest.mark.slow
def test_the_watchdog_finds_a_process_that_does_not_come():
    case = Case([[2, 1]], [0], [], 1, 1, True, None)
    with groups(2) as by_size:
        group = by_size[2]
        check(case, group.run(case))
        group.pipes[1].send = lambda case: None  # this process never hears of the step
        with pytest.raises(AssertionError, match="process 0 of 2 hangs in Case"):
            group.run(case, patience=2.0)
        assert not any(process.is_alive() for process in group.processes)
