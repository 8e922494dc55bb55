# SPDX-License-Identifier: Apache-2.0
"""DUET's grace window scaled to this task: rollouts of at most 320 tokens."""

GRACE_WINDOW = 16  # tokens; paper: 150 of 3,072
