# SPDX-License-Identifier: Apache-2.0
"""Phase 1 of DUET: how many rollouts each prompt gets (paper, section 3.1)."""
