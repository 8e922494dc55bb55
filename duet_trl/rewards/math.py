# SPDX-License-Identifier: Apache-2.0
r"""Math reward: the boxed answer of a completion against a gold answer, checked by Math-Verify in killable processes.

Some answers of a policy keep a computer algebra system busy forever, and neither a thread nor Math-Verify's own alarm
stops arithmetic in C. Worker processes (`math_worker.py`) grade, and the kernel ends those that exceed their time.
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..gate.markers import extract_boxed
from .completions import CACHE_SIZE, MAX_ANSWER_LENGTH, Completion, checked_which, gold_text, read_completions
from .math_pairs import comparable
from .math_text import gold_answer, readable, stated_answer
from .workers import Worker, Workers

logger = logging.getLogger(__name__)

WORKER_SCRIPT = Path(__file__).with_name("math_worker.py")
CHUNK_SIZE = 16
"""Maximum number of pairs sent to a worker at once: a large chunk may hold several answers that use up their time."""
UNREADABLE_GOLD = "gold answer is empty, a sentence or cannot be parsed; its rows stay ungraded"
WARNINGS = {"n": UNREADABLE_GOLD, "k": "answer used up its time and scores 0; raise timeout if it is right"}


def math_reward(completions: list[Completion], answer: list[Any], **kwargs: Any) -> list[float | None]:
    r"""TRL reward function: 1 if the last `\boxed{}` of the completion equals the gold answer, else 0.

    Args:
        completions (list[str] | list[list[dict]]): Plain or conversational completions.
        answer (list[str]): Gold answers without a box, one per completion (the data-set column `answer`).
        **kwargs: Other columns and helpers that TRL passes; of these the thoughts of the completions are read.

    Returns:
        list[float | None]: 1.0 or 0.0; None, ungraded, where the gold cannot be parsed or is a sentence.

    Raises:
        ImportError: If Math-Verify is not installed.
    """
    return _default_verifier()(completions, answer, **kwargs)


class MathVerifier:
    r"""Grades boxed answers against gold answers with Math-Verify; callable as a TRL reward function.

    A gold that is a solution counts as the answer that it states, in a box, after #### or as "The answer is ...".
    Completions without a closed, non-empty box score 0.

    Args:
        timeout (float): CPU seconds that one answer may use; beyond them, or ten times as much wall-clock time, it
            scores 0.
        workers (int | None): Worker processes. None: one per core, at most 8. They start with the first call.
        which (str): "last" box of a completion, or the "first".

    Raises:
        ImportError: If Math-Verify is not installed.
        ValueError: If an argument is out of its range.
    """

    __name__ = "math_reward"  # TRL names the reward's metrics after it

    def __init__(self, *, timeout: float = 3.0, workers: int | None = None, which: str = "last") -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout} seconds.")
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError('math_reward needs Math-Verify. Install it with: pip install "duet-trl[math]"')
        self._which = checked_which(which)
        self._workers = Workers(lambda: _Worker(timeout), workers, min(8, os.cpu_count() or 1))
        self._cache: dict[tuple[str | None, str], float | None] = {}
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def __call__(self, completions: list[Completion], answer: list[Any], **kwargs: Any) -> list[float | None]:
        """Rewards of completions; arguments and result as in :func:`math_reward`."""
        written = read_completions(completions, kwargs)
        return self.grade([extract_boxed(text, which=self._which) for text in written], answer)

    def grade(self, answers: Sequence[str | None], golds: Sequence[Any]) -> list[float | None]:
        """Verdicts on the contents of the boxes, None without a box; the rest as in :func:`math_reward`."""
        return self._verdicts([self._pair(answer, gold) for answer, gold in zip(answers, golds, strict=True)])

    def close(self) -> None:
        """Ends the worker processes; they start again with the next call."""
        self._workers.close()

    def _verdicts(self, pairs: list[tuple[str | None, str]]) -> list[float | None]:
        with self._lock:
            if len(self._cache) > CACHE_SIZE:
                self._cache.clear()
            self._fill_cache([pair for pair in dict.fromkeys(pairs) if pair not in self._cache])
            return [self._cache.get(pair) for pair in pairs]

    def _fill_cache(self, pairs: list[tuple[str | None, str]]) -> None:
        size = max(1, min(CHUNK_SIZE, -(-len(pairs) // len(self._workers.all))))
        chunks = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        for chunk, verdicts in zip(chunks, self._workers.ask_all(chunks), strict=True):
            if isinstance(verdicts, Exception):
                self._warn_once("a math worker died twice on the same answers; they stay ungraded", chunk[0])
                continue
            for pair, verdict in zip(chunk, verdicts, strict=True):
                self._cache[pair] = {"1": 1.0, "n": None}.get(verdict, 0.0)
                if verdict in WARNINGS:
                    self._warn_once(WARNINGS[verdict], pair)

    def _pair(self, answer: str | None, gold: Any) -> tuple[str | None, str]:
        """Answer and gold as the workers read them; None in place of an answer that is wrong unread."""
        text = gold_text(gold)
        gold = readable(gold_answer(text))
        if text.strip() and not gold:
            self._warn_once(UNREADABLE_GOLD, (answer, text))
        if answer is not None and len(answer) > MAX_ANSWER_LENGTH:
            self._warn_once(f"answer has more than {MAX_ANSWER_LENGTH} characters and scores 0", (answer, gold))
            return None, gold
        return (None, gold) if answer is None else comparable(readable(stated_answer(answer)), gold)

    def _warn_once(self, message: str, pair: tuple[str | None, str]) -> None:
        if message not in self._warned:
            self._warned.add(message)
            answer, gold = (repr(part and part[:200]) for part in pair)
            logger.warning("%s. First seen: answer %s, gold %s", message, answer, gold)


_default_verifier = cache(MathVerifier)


class _Worker(Worker):
    """One worker process: pairs in, a verdict character for each out ("1", "0", "n"o gold, "k"illed).

    A fresh interpreter runs the script by its path: `multiprocessing` would copy the threads and locks of the training
    process or import its main module again. Its own session keeps Ctrl-C away from it.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def start(self) -> None:
        # -P: the script's folder holds a `math.py`, which must not hide the standard library's.
        command = [sys.executable, "-P", str(WORKER_SCRIPT), str(self._timeout)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        self._process = subprocess.Popen(command, start_new_session=True, **pipes)

    def exchange(self, request: list[tuple[str | None, str]]) -> str:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        verdicts = self._process.stdout.readline().strip()
        if len(verdicts) != len(request):
            raise BrokenPipeError("the worker ended")
        return verdicts
