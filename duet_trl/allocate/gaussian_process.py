# SPDX-License-Identifier: Apache-2.0
r"""A Gaussian process over vectors, corrected step by step: what similar prompts did says what a prompt will do.

    g(x) = m + sum_k K(x, x_k) c_k          rbf      K = exp(-d^2 / (2 l^2)),  d = |x - x_k|
                                            matern   K = (1 + s + s^2 / 3) exp(-s),  s = sqrt(5) d / l   (nu = 5/2)

Observations y of the points B add c_B = (K_BB + 1e-4 I)^-1 (y - g(B)). The covariance stays the prior's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .state import check_state

NOISE = 1e-4
"""Variance of an observation."""
KERNELS = ("rbf", "matern")
_ROUNDING = 1e-12
"""Squared distances below this share of the vectors' own squares are rounding."""


class GaussianProcess:
    """Posterior mean of a function of vectors.

    Args:
        prior_mean (float): m, the value far from all observations.
        kernel (str): One of `KERNELS`.
        length_scale (float | None): l, > 0. None: the median distance between different points of the first step that
            has some; it then stays.
        reuse_mean (bool): What is learned adds up over steps. False: the last step alone counts.
    """

    def __init__(
        self, prior_mean: float, kernel: str = "rbf", length_scale: float | None = None, reuse_mean: bool = False
    ) -> None:
        self.prior_mean = prior_mean
        self.kernel = kernel
        self.length_scale = length_scale
        self.reuse_mean = reuse_mean
        self.keys: list[str] = []  # of the points, V of them
        self.vectors = np.zeros((0, 0), dtype=np.float32)  # (V, D)
        self.coefficients = np.zeros(0)  # (V,)

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Posterior mean at some vectors, shape (M, D) -> (M,)."""
        if not self.keys:
            return np.full(len(vectors), float(self.prior_mean))
        if vectors.shape[1] != self.vectors.shape[1]:
            raise ValueError(
                f"The vectors have {vectors.shape[1]} numbers, and those of the steps before had "
                f"{self.vectors.shape[1]}. Use one source of embeddings for a whole run."
            )
        return self.prior_mean + self._covariance(vectors, self.vectors) @ self.coefficients

    def learn(self, keys: Sequence[str], vectors: np.ndarray, observed: np.ndarray) -> None:
        """Take in the observations of a step.

        Args:
            keys (Sequence[str]): Identity of each point across steps, length B.
            vectors (np.ndarray): Shape (B, D).
            observed (np.ndarray): Shape (B,).
        """
        if self.length_scale is None:
            apart = distances(vectors, vectors)[np.triu_indices(len(vectors), k=1)]
            self.length_scale = float(np.median(apart[apart > 0])) if (apart > 0).any() else None
        points = dict(zip(self.keys, zip(self.vectors, self.coefficients, strict=True), strict=True))
        if not self.reuse_mean:
            points, self.keys = {}, []
        # `predict` is the prior mean where nothing is known.
        factor = np.linalg.cholesky(self._covariance(vectors, vectors) + NOISE * np.eye(len(vectors)))
        added = np.linalg.solve(factor.T, np.linalg.solve(factor, observed - self.predict(vectors)))
        for key, vector, coefficient in zip(keys, vectors, added, strict=True):
            points[key] = vector, coefficient + points.get(key, (vector, 0.0))[1]
        self.keys = list(points)
        self.vectors = np.stack([vector for vector, _ in points.values()])
        self.coefficients = np.array([coefficient for _, coefficient in points.values()])

    def state_dict(self) -> dict[str, Any]:
        """Points and coefficients."""
        return {
            "length_scale": self.length_scale,
            "keys": list(self.keys),
            "vectors": self.vectors.copy(),
            "coefficients": self.coefficients.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        check_state("Gaussian process", state, self.state_dict())
        self.length_scale, self.keys = state["length_scale"], list(state["keys"])
        self.vectors, self.coefficients = state["vectors"], state["coefficients"]

    def _covariance(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        # Without a scale all points were alike, and then any scale will do.
        scaled = distances(first, second) / (self.length_scale or 1.0)
        if self.kernel == "rbf":
            return np.exp(-0.5 * scaled**2)
        scaled *= np.sqrt(5.0)
        return (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)


def distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Euclidean distances between rows, shapes (A, D) and (B, D) -> (A, B), float64."""
    centre = second.mean(axis=0, dtype=np.float64)  # vectors may share a large mean, which would cancel badly
    x, y = first - centre, second - centre
    sizes = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)
    squares = sizes - 2.0 * x @ y.T
    return np.sqrt(np.where(squares > _ROUNDING * sizes, squares, 0.0))
