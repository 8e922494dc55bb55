# SPDX-License-Identifier: Apache-2.0
"""Chains of remainders that are guessed or worked out: the tiny task in which solutions have to become longer."""
