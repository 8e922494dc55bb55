# SPDX-License-Identifier: Apache-2.0
"""Methods and suites as tables and figures name them; what has no title here keeps its own name."""

METHODS = {
    "grpo": "GRPO",
    "dapo": "DAPO",
    "greso": "GRESO",
    "pods": "PODS",
    "pilot": "Pilot",
    "arrol": "ARRoL",
    "vip": "VIP",
    "reinforce_ada": "Reinforce-Ada",
    "knapsack": "Knapsack RL",
    "seed_grpo": "SEED-GRPO",
    "dynamo": "DynaMO",
    "spec_rl": "SPEC-RL",
    "paper": "DUET (paper)",
    "duet": "DUET",
}
"""In the order of rows and legends."""

SUITES = {
    "math500": "MATH-500",
    "gsm8k": "GSM8K",
    "aime2024": "AIME-24",
    "humaneval": "HumanEval",
    "gpqa_diamond": "GPQA-D",
}
"""In the order of columns."""


def method_title(method: str) -> str:
    """A method as the paper writes it."""
    return METHODS.get(method, method)


def suite_title(suite: str) -> str:
    """A suite as the paper's columns are headed."""
    return SUITES.get(suite, suite)


def in_order(names: set[str], titles: dict[str, str]) -> list[str]:
    """Names that have a title in the order of the titles, then the others by name."""
    return [name for name in titles if name in names] + sorted(names - titles.keys())
