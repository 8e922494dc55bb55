# SPDX-License-Identifier: Apache-2.0
"""The interface of a training method: five functions that decide and remember.

A method decides which rollouts a generation step has and what each of them contributes to the gradient. It is a pure
function of its state and its arguments, equal on every process, and knows nothing of TRL, engines or processes; how a
step calls it is `duet_trl.loop`. docs/extending.md has one in thirty lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..rollouts import Job, Judgement, Prompt, Prompts, Query, Rollouts
from ..state import restore, state_of


@dataclass(frozen=True)
class Setting:
    """The part of the run's configuration that every method may read."""

    num_prompts: int  # M, prompts that the sampler draws for a generation step
    num_generations: int  # rollouts per prompt of full GRPO
    max_completion_length: int  # length limit of a rollout, tokens
    max_rollouts: int  # maximum rollouts of a step, over all rounds and processes
    budget_fraction: float = 1.0  # b, share of full GRPO's rollouts that a method with a budget may cost, (0, 1]
    num_rollouts_min: int = 1  # n_min, minimum rollouts of a prompt
    num_rollouts_max: int = 32  # n_max, maximum rollouts of a prompt
    scale_rewards: str = "group"  # or "batch" or "none"
    multi_objective_aggregation: str = "sum_then_normalize"  # or "normalize_then_sum"
    seed: int = 0  # of every random decision


class Method(Protocol):
    """A method. A subclass inherits everything after `observe`."""

    gated: bool = False  # some of its jobs carry a `GateSpec`, so that the run needs a marker
    teaches_ending: bool = False
    """A rollout that was trimmed after its answer is trained up to the answer, with an EOS after it where its
    advantage is above 0."""
    plain: bool = False
    """It is GRPO: `num_generations` rollouts of every prompt in one round, all trained with weight 1, and rows stay
    where `GRPOTrainer` has them."""
    embeddings: str | None = None
    """Source of the prompt vectors that it needs: "policy", or a model (`duet_trl.seams.embeddings`). The trainer
    then sets `embed`."""
    identity: dict[str, Any] = {}  # JSON values that must agree when a state is restored
    remembered: tuple[str, ...] = ()  # attributes that its state consists of, as in `duet_trl.state.Stateful`
    _metrics: Mapping[str, float] = {}

    def setup(self, setting: Setting) -> None:
        """Receive the run's settings, once, before any other call; only for an object given to the trainer."""

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """The next round of a step.

        Args:
            prompts (Prompts): Prompts of the step. A prompt may get no job; `prompts.more` adds prompts.
            done (Rollouts | None): Rollouts and answers of the rounds before; None in the first. Empty, with answers,
                where only questions were asked so far.

        Returns:
            Sequence[Job | Query]: Rollouts that are requested, and questions to the model; empty ends the rounds.
        """

    def judge(self, done: Rollouts) -> Judgement:
        """What each rollout of the step contributes to the gradient.

        Args:
            done (Rollouts): All N rollouts.

        Returns:
            Judgement: Shape (N,) each.
        """

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Learn from a step, once its rollouts have been through the policy and before the weights move.

        Args:
            done (Rollouts): All N rollouts.
            judgement (Judgement): As `judge` returned it.
            sum_logps (np.ndarray): Sum of log pi over each rollout's tokens, shape (N,), nats; nan where no forward
                pass was made, inf where its result was not finite.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a restored run needs to make the same decisions: JSON values and numpy arrays, nested in dicts."""
        return state_of(self, self.remembered)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`.

        Raises:
            ValueError: If the state is not one of this method.
        """
        restore(self, self.remembered, state, self.identity.get("method", type(self).__name__))

    def metrics(self) -> dict[str, float]:
        """Plain floats about the last step, without the prefix `duet/`; asked for after `observe`."""
        return dict(self._metrics)

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Vectors of some prompts, shape (M, D), float32. Every process must ask for the same prompts."""
        raise RuntimeError(
            f"{type(self).__name__} compares prompts by vectors and was given none. Set its attribute `embeddings`, "
            "from which the trainer sets `embed`; without a trainer set `embed` itself."
        )
