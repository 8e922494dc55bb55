# SPDX-License-Identifier: Apache-2.0
"""Phase 1 without memory: surrogates that are fixed before the run, the paper's ablation.

`constant` gives every prompt the same sigma, so that counts follow lengths alone, n_q ~ 1 / sqrt(L_q). `ridge`
predicts sigma from a feature that needs no rollout, the mean log-prob x_q of the prompt's own tokens under the base
model:

    s_q = max(s_floor, alpha_0 + alpha_1 x_q)

with coefficients fitted to the sigma_obs (Eq. 3) of a calibration run (`recipes/fit_surrogate.py`). Features and
coefficients come from a file, which belongs to one model and one data set. docs/fidelity.md#surrogate_kind.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .state import check_state
from .statistics import PromptStatistics, PromptView

VERSION = 1
FIT = "python recipes/fit_surrogate.py --run <calibration run> --model <base model> --output <file>"
"""The command that writes a surrogate file."""


@dataclass(frozen=True)
class RidgeFit:
    """A line through observations, with a penalty on its slope.

    Attributes:
        intercept (float): alpha_0, advantage x nats.
        slope (float): alpha_1, advantage x nats per nat.
        r_squared (float): Share of the variance of the observations that it explains; nan if they have none.
    """

    intercept: float
    slope: float
    r_squared: float


def fit_ridge(feature: np.ndarray, sigma: np.ndarray, penalty: float) -> RidgeFit:
    """Ridge regression of sigma on one feature.

    Minimises ``sum (sigma - a - b z)^2 + penalty b^2`` over the standardised feature ``z = (x - mean x) / std x`` (std
    over n), hence ``b = sum z (sigma - mean sigma) / (n + penalty)`` and ``a = mean sigma``. The intercept is not
    penalised.

    Args:
        feature (np.ndarray): x of each prompt, shape (P,), nats.
        sigma (np.ndarray): sigma_obs of each prompt, shape (P,), advantage x nats.
        penalty (float): Ridge penalty, >= 0.

    Raises:
        ValueError: If there are fewer than two prompts, a value is not finite, or all features are the same.
    """
    if feature.size < 2 or not (np.isfinite(feature).all() and np.isfinite(sigma).all()):
        raise ValueError(f"a fit needs finite values of at least two prompts, got {feature.size} prompts.")
    spread = float(feature.std())
    if spread == 0.0:
        raise ValueError("all prompts have the same mean log-prob: there is nothing to fit. Use surrogate='constant'.")
    z, centred = (feature - feature.mean()) / spread, sigma - sigma.mean()
    slope = float(z @ centred) / (feature.size + penalty) / spread
    intercept = float(sigma.mean() - slope * feature.mean())
    total = float(centred @ centred)
    rest = float(np.square(sigma - intercept - slope * feature).sum())
    return RidgeFit(intercept, slope, 1.0 - rest / total if total else math.nan)


@dataclass(frozen=True)
class SurrogateFile:
    """What `surrogate="ridge"` reads.

    Attributes:
        path (str): Where it is.
        model (str): Base model of the features, as it was named.
        intercept (float): alpha_0.
        slope (float): alpha_1.
        features (Mapping[str, float]): Mean log-prob of each prompt by its key, nats.
        about (Mapping[str, Any]): Of the fit: calibration run, number of prompts, penalty, R^2.
    """

    path: str
    model: str
    intercept: float
    slope: float
    features: Mapping[str, float]
    about: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Hash of model, coefficients and features."""
        content = [self.model, self.intercept, self.slope, sorted(self.features.items())]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=12).hexdigest()

    def write(self) -> None:
        """Write it as JSON."""
        content = {name: value for name, value in vars(self).items() if name != "path"}
        head = {"version": VERSION, "fingerprint": self.fingerprint}
        Path(self.path).write_text(json.dumps(head | content, indent=1) + "\n")

    @classmethod
    def read(cls, path: str) -> "SurrogateFile":
        """Read what `write` wrote. ValueError if there is no such file, or it is of another version or damaged."""
        try:
            content = json.loads(Path(path).read_text())
            version, fingerprint = content.pop("version"), content.pop("fingerprint")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"surrogate_file {path!r} is no surrogate file: {error!r}. Write one: {FIT}") from error
        if version != VERSION:
            raise ValueError(
                f"surrogate_file {path!r} has version {version!r}, and this library reads {VERSION}. Write it again: "
                f"{FIT}"
            )
        try:
            found = cls(path, **content)
            intact = found.fingerprint == fingerprint
        except (TypeError, AttributeError):  # other fields, or features that are no mapping
            intact = False
        if not intact:
            raise ValueError(
                f"surrogate_file {path!r} is damaged: its fingerprint does not fit. Write it again: {FIT}"
            )
        return found

    def check_model(self, model: str) -> None:
        """Raise ValueError if it was made for another model; a local copy of a model on the Hub is that model."""
        if model.rstrip("/").split("/")[-1] != self.model.rstrip("/").split("/")[-1]:
            raise ValueError(
                f"surrogate_file {self.path!r} was made for the model {self.model!r}, and this run trains {model!r}. "
                f"Fit it for this model: {FIT}"
            )

    def sigma(self, keys: Sequence[str]) -> np.ndarray:
        """Predicted sigma of some prompts, shape (M,). ValueError if it lacks one of them."""
        missing = [key for key in keys if key not in self.features]
        if missing:
            raise ValueError(
                f"surrogate_file {self.path!r} lacks {len(missing)} of {len(keys)} prompts, such as {missing[0]!r}: "
                f"it was made for other data or another prompt_id_column. Fit it for these data: {FIT}"
            )
        return self.intercept + self.slope * np.array([self.features[key] for key in keys])


class StaticSurrogate:
    """s_q that no observation changes; stands in for `Surrogate`.

    Args:
        floor (float): Minimum sigma, advantage x nats, > 0; the sigma of all prompts without a file.
        file (SurrogateFile | None): Features and coefficients; None: a constant.

    Attributes:
        floor (float): As given.
    """

    def __init__(self, floor: float, file: SurrogateFile | None = None) -> None:
        self.floor = floor
        self.file = file

    def advance(self, statistics: PromptStatistics, epoch: int) -> None:
        """Nothing follows from an epoch."""

    def sigma(self, view: PromptView, statistics: PromptStatistics) -> np.ndarray:
        """s_q of the prompts in `view`, shape (M,). ValueError if the file lacks one of them."""
        if self.file is None:
            return np.full(len(view.keys), self.floor)
        return np.maximum(self.file.sigma(view.keys), self.floor)

    def is_warm(self, view: PromptView) -> np.ndarray:
        """Every prompt has its estimate from the start, shape (M,), bool."""
        return np.ones(len(view.keys), dtype=bool)

    def is_due(self, view: PromptView) -> np.ndarray:
        """No prompt waits for an observation, shape (M,), bool."""
        return np.zeros(len(view.keys), dtype=bool)

    def state_dict(self) -> dict:
        """Which file it is, JSON types."""
        return {"fingerprint": None if self.file is None else self.file.fingerprint}

    def load_state_dict(self, state: dict) -> None:
        """Check that the state is of the same file. Raises ValueError if it is not."""
        check_state("surrogate", state, self.state_dict())
        if state != self.state_dict():
            raise ValueError(
                f"The checkpoint was written with another surrogate file (fingerprint {state['fingerprint']}, now "
                f"{self.state_dict()['fingerprint']}). Resume with that file."
            )
