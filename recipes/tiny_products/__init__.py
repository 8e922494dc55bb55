# SPDX-License-Identifier: Apache-2.0
"""Multi-digit products in long chains of one-digit steps, answered in a code fence: the other shape of a tiny task."""
