# SPDX-License-Identifier: Apache-2.0
"""The estimate from a log, the model card, and plain tables."""
