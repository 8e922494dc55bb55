# SPDX-License-Identifier: Apache-2.0
"""Phase 1 of DUET: who gets how many rollouts (paper, section 3.1)."""
