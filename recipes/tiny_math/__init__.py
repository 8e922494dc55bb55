# SPDX-License-Identifier: Apache-2.0
"""A tiny arithmetic task with a shipped policy: reinforcement learning that shows an effect on two CPU cores."""
