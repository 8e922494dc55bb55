# SPDX-License-Identifier: Apache-2.0
"""Phase 3, update: the input of the gradient (paper, section 3.3, Eq. 6)."""
