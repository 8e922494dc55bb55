# SPDX-License-Identifier: Apache-2.0
"""The check that every part of phase 1 makes before it restores a state."""


def check_state(owner: str, state: dict, expected: dict) -> None:
    """Check that a state was written by the part that is about to load it."""
    if state.keys() != expected.keys():
        raise ValueError(
            f"The {owner} state has keys {sorted(state)}, expected {sorted(expected)}: it is missing, foreign or "
            "from another version. Resume from a checkpoint that this version wrote."
        )
