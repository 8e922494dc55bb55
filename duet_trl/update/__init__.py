# SPDX-License-Identifier: Apache-2.0
"""Phase 3, update: what the gradient sees (paper, section 3.3, Eq. 6)."""
