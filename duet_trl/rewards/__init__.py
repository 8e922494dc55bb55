# SPDX-License-Identifier: Apache-2.0
"""Verifiers: reward functions in TRL's form that never raise into training."""

from .math import MathVerifier, math_reward

__all__ = ["MathVerifier", "math_reward"]
