# SPDX-License-Identifier: Apache-2.0
"""Tables and figures from a run's log history."""
