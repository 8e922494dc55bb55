# SPDX-License-Identifier: Apache-2.0
"""Runs untrusted programs; `pool.py` explains how."""

from .pool import Check, Limits, Sandbox, SandboxError, Verdict

__all__ = ["Check", "Limits", "Sandbox", "SandboxError", "Verdict"]
