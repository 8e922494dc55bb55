# SPDX-License-Identifier: Apache-2.0
"""Phase 3: importance weights of Eq. 6, and what they cost in second moment (Theorem 2, Eq. 8)."""

import numpy as np


def rollout_weights(
    num_rollouts: np.ndarray,
    group: np.ndarray,
    propensity: np.ndarray,
    aborted: np.ndarray,
    *,
    floor: float = 0.05,
) -> np.ndarray:
    """Weight of each rollout, w = (1 - I_abort) / (s_pre * p_abort) (text of Eq. 6; Algorithm 1, phase 3).

    s_pre = clip(n_q / mean n, floor, 1) on the *realised* counts (docs/fidelity.md#stratification). Counts n_q have
    shape (M,); the prompt of a rollout, its probability of being kept in (0, 1] and I_abort have shape (N,); `floor`
    is eps_pre, in (0, 1]. Returns w, shape (N,), float64; 0 for aborted rollouts.

    Example:
        >>> weights = rollout_weights([1, 3], [0, 1, 1, 1], [1, 1, 0.5, 1], [False, False, False, True])
        >>> weights.tolist()
        [2.0, 1.0, 2.0, 0.0]
    """
    num_rollouts, group = np.asarray(num_rollouts), np.asarray(group, dtype=np.int64)
    per_prompt = np.clip(num_rollouts / num_rollouts.mean(), floor, 1.0) if len(group) else np.ones(0)
    return ~np.asarray(aborted, dtype=bool) / (per_prompt[group] * np.asarray(propensity, dtype=np.float64))


def effective_sample_size(weights: np.ndarray) -> float:
    """Kish's effective number of rollouts, (sum w)^2 / sum w^2; at most the number of non-zero weights."""
    weights = np.asarray(weights, dtype=np.float64)
    squares = np.square(weights).sum()
    return float(weights.sum() ** 2 / squares) if squares > 0 else 0.0


def surcharge_bound(
    markerless_rate: np.ndarray,
    keep_probability: float,
    second_moment: np.ndarray,
    squared_weights: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Second moment that the abort adds at most, per prompt (Theorem 2, Eq. 8, with its aggregation corollary).

    (1 - p_marker) * (1 - eps) / eps * sigma^2_mless * sum_i w_i^2

    `markerless_rate` is 1 - p_marker, `keep_probability` eps_abort in (0, 1] (else ValueError), `second_moment`
    sigma^2_mless of a marker-less rollout's contribution, `squared_weights` the sum over a prompt; shape (M,) each.
    """
    if not 0 < keep_probability <= 1:
        raise ValueError(f"keep_probability must be in (0, 1], got {keep_probability}. Nothing is kept at 0.")
    odds = (1 - keep_probability) / keep_probability
    return np.asarray(markerless_rate) * odds * np.asarray(second_moment) * squared_weights


def surcharge(
    advantages: np.ndarray,
    sum_logps: np.ndarray,
    lengths: np.ndarray,
    group: np.ndarray,
    propensity: np.ndarray,
    aborted: np.ndarray,
    *,
    num_prompts: int,
    keep_probability: float,
) -> float:
    """Factor by which the abort raises the second moment of the update (Theorem 2, aggregation corollary (ii)).

    A heuristic, as in the paper: N_t is random, and instead of gradients it uses the stand-in of Eq. 3. The
    contribution of a rollout is z = A * sum log pi / length, its aggregation weight length / N_t. sigma^2_mless of a
    prompt is the mean of z^2 over its marker-less kept rollouts; where it has none, over all of the batch's; where the
    batch has none either, over all kept rollouts. Columns have shape (N,); a propensity below 1 marks a marker-less
    kept rollout. Returns (natural + Eq. 8 summed over prompts) / natural: 1 is free, the paper reports at most 1.5.
    """
    kept = ~aborted
    num_tokens = lengths[kept].sum()  # N_t
    if num_tokens == 0:
        return 1.0
    markerless_kept = kept & (propensity < 1)
    teaching = kept & (advantages != 0)
    contribution = np.zeros(len(group))
    contribution[teaching] = advantages[teaching] * sum_logps[teaching] / np.maximum(lengths[teaching], 1)
    squared_contribution = np.square(contribution)
    squared_weight = np.where(kept, np.square(lengths / num_tokens), 0.0)

    def per_prompt(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=num_prompts)

    size = np.maximum(per_prompt(np.ones(len(group))), 1)
    markerless_rate = per_prompt(aborted | markerless_kept) / size
    pool = markerless_kept if markerless_kept.any() else kept
    observed = per_prompt(markerless_kept)
    second_moment = np.where(
        observed > 0,
        per_prompt(squared_contribution * markerless_kept) / np.maximum(observed, 1),
        squared_contribution[pool].mean(),
    )
    bound = surcharge_bound(markerless_rate, keep_probability, second_moment, per_prompt(squared_weight))
    # Marker-less rollouts survive with probability p, so each stands for 1/p natural ones.
    natural = float((squared_weight * squared_contribution / propensity).sum())
    return 1.0 + float(bound.sum()) / natural if natural > 0 else 1.0
