# SPDX-License-Identifier: Apache-2.0
"""Verifiers: reward functions in TRL's form that never raise into training."""

from .choice import ChoiceVerifier, choice_reward
from .code import CodeVerifier, code_reward
from .math import MathVerifier, math_reward
from .sandbox import Check, Limits, Sandbox, SandboxError, Verdict

__all__ = [
    "Check",
    "ChoiceVerifier",
    "CodeVerifier",
    "Limits",
    "MathVerifier",
    "Sandbox",
    "SandboxError",
    "Verdict",
    "choice_reward",
    "code_reward",
    "math_reward",
]
