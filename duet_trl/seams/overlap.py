# SPDX-License-Identifier: Apache-2.0
"""Generation during training: while a step trains, the server generates the rollouts of the next one.

They come from the weights before the updates of the step, so one step behind when they are trained; the log-probs of
the engine correct for it, as for any difference between engine and policy. What the method has learnt by then decides
how many there are and when each stops. Only the first round of a step begins early: later ones depend on its rewards.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from trl import GRPOTrainer

from ..engines.engine import ServerError
from ..rollouts import Prompts, StepRecord

logger = logging.getLogger(__name__)


class Ahead:
    """An iterator that shows what it will return; `first_step` numbers its first item."""

    def __init__(self, items: Iterator, first_step: int) -> None:
        self.items = items
        self._next = first_step
        self._seen: deque = deque()

    def __iter__(self) -> Iterator:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next item."""
        item = self._seen.popleft() if self._seen else next(self.items)
        self._next += 1
        return item

    def item(self, number: int) -> Any:
        """The item of a number that has not been returned yet; None: there are fewer."""
        while self._next + len(self._seen) <= number:
            try:
                self._seen.append(next(self.items))
            except StopIteration:
                return None
        return self._seen[number - self._next]


class Overlap:
    """Begins the next step of a trainer; its `loop` and `engine` do the work."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer
        self._ahead: Ahead | None = None
        self._next: StepRecord | None = None
        self._restored = self._warned = False

    def ahead(self, batches: Iterator) -> Ahead:
        """The batches of an epoch, from which the next step is read in advance."""
        if self._ahead is None or self._ahead.items is not batches:
            self._ahead, self._next = Ahead(batches, self.trainer._step), None
            if not self._restored:  # what a training before this one has left
                self.trainer.engine.forget_begun()
            self._restored = False
        return self._ahead

    def step(self, prompts: Prompts) -> StepRecord:
        """The step that was begun for some prompts; a new one if none was, as at the start of an epoch."""
        begun, self._next = self._next, None
        if begun is None:
            return StepRecord(prompts)
        if begun.prompts.keys[: begun.prompts.num_drawn] != prompts.keys:
            raise RuntimeError(
                "The prompts of a step are not those that its rollouts were begun for: this version of transformers "
                "or TRL draws batches in another order. Set overlap=False."
            )
        return begun

    def begin(self, scored: StepRecord) -> None:
        """Begin the step after the one just scored, before that one trains; its seconds count for that one."""
        trainer, started = self.trainer, time.perf_counter()
        trainer.engine.forget_begun()
        inputs = self._next_inputs()
        if inputs is None:
            return
        self._next = StepRecord(trainer.prompts_of_step(inputs))
        try:
            begun = trainer.loop.begin(self._next)
        except ServerError as error:  # here no checkpoint could be written that holds the step once
            logger.warning("The next step is generated in turn, as the server could not begin it: %s", error)
            begun = True
        self._next.seconds["plan"] = 0.0
        scored.seconds["generate"] += time.perf_counter() - started
        if not begun and not self._warned:
            self._warned = True
            logger.warning(
                "%s asks the policy before it asks for rollouts, so none are generated while the policy trains. "
                "overlap=False has the same effect.",
                type(trainer.method).__name__,
            )

    def _next_inputs(self) -> Any:
        """The batch of the next generation step; None at the end of the epoch or of the run."""
        trainer, args = self.trainer, self.trainer.args
        per_batch = args.steps_per_generation * trainer.num_iterations
        done, last = trainer.state.global_step, trainer.state.max_steps
        if (last - done) * args.gradient_accumulation_steps <= per_batch:
            return None
        return self._ahead.item(trainer._step + per_batch)

    def state_dict(self) -> dict[str, Any]:
        """State of the step that was begun, for a checkpoint: JSON values and arrays."""
        return {"begun": self.trainer.engine.begun_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`, or take up a run that had no overlap."""
        # Where each node writes its own checkpoint, that of process 0 has the rollouts.
        self.trainer.engine.load_begun(self.trainer.exchange.first(state.get("begun", {})))
        self._restored = True
