# SPDX-License-Identifier: Apache-2.0
"""The check that every part of phase 1 makes before it restores a state."""


def check_state(owner: str, state: dict, expected: dict) -> None:
    """Check that a state was written by the part that is about to load it.

    Args:
        owner (str): Name of that part, for the message.
        state (dict): State to load.
        expected (dict): A state of that part; only its keys matter.

    Raises:
        ValueError: If the keys differ.
    """
    if state.keys() != expected.keys():
        raise ValueError(
            f"The {owner} state has keys {sorted(state)}, expected {sorted(expected)}: it is missing, foreign or "
            "from another version. Resume from a checkpoint that this version wrote."
        )
