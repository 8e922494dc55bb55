# SPDX-License-Identifier: Apache-2.0
"""Table 4: what each method can do, as this package has it.

The marks of GRPO, DAPO, ARRoL, VIP and `paper` are the paper's. The others are ours, in its sense. A test holds those
about counts, length and budget against the methods themselves (tests/report/test_capabilities.py).
"""

from collections.abc import Sequence

from .layout import Column, Section, Table
from .titles import in_order, method_title

MARKS = {"+": "✓", "o": "∘", "-": "−"}
"""Full; partial, on a single axis or after the rollouts; absent."""
CAPABILITIES = (
    "Adaptive prompt selection",
    "Variable rollout count per prompt",
    "Adaptive within-rollout length",
    "Multi-axis joint coordination",
    "Pre-rollout decision (saves generation)",
    "Explicit compute-budget constraint",
    "Bias-corrected gradient under selection",
    "Variance-optimality guarantee",
    "Self-correcting safety overhead",
)
MATRIX = {
    "grpo": "------+--",
    "dapo": "o-----o--",
    "arrol": "--+--oo--",
    "vip": "++--+o+o-",
    "paper": "++++++ooo",
    # With `allocate=True` the counts of `duet` maximise the expected number of mixed prompts, a prompt weighs as many
    # as it has rollouts, and there is no coin whose weight would have to be bounded.
    "duet": "++++++---",
    "greso": "+---+----",
    "pods": "---------",
    "pilot": "++--+++--",
    "reinforce_ada": "o+--o----",
    "knapsack": "++--+o---",
    "dynamo": "++--+o-o-",
    "seed_grpo": "------o--",
    "spec_rl": "--o-+-o--",
}
"""One sign of `MARKS` per capability."""
OF_THE_PAPER = ("grpo", "dapo", "arrol", "vip", "paper", "duet")


def capability_tables() -> list[Table]:
    """The paper's table with our recommended method, and the same for the others."""
    others = in_order(MATRIX.keys() - set(OF_THE_PAPER), MATRIX)
    title = "Capabilities as they are implemented here"
    legend = "✓ full; ∘ partial, on a single axis or after the rollouts; − absent."
    proviso = "The ∘ of DUET (paper) hold in the setting of its theorems only (docs/fidelity.md)."
    return [
        _table("table4", "Table 4", f"{title}. {legend}", OF_THE_PAPER, [proviso]),
        _table(
            "table4_others", "Table 4, other methods", f"{title}: what the paper does not compare. {legend}", others
        ),
    ]


def _table(name: str, heading: str, caption: str, methods: Sequence[str], notes: Sequence[str] = ()) -> Table:
    rows = [
        (capability, [MARKS[MATRIX[method][number]] for method in methods])
        for number, capability in enumerate(CAPABILITIES)
    ]
    columns = [Column(method, method_title(method), "count") for method in methods]
    return Table(name, heading, caption, "Capability", columns, [Section("", rows)], list(notes))
