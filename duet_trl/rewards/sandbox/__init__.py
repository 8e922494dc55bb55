# SPDX-License-Identifier: Apache-2.0
"""Runs programs that nobody has read; `pool.py` says how."""

from .pool import STRONG_ISOLATION, WEAK_ISOLATION, Check, Limits, Sandbox, SandboxError, Verdict

__all__ = ["STRONG_ISOLATION", "WEAK_ISOLATION", "Check", "Limits", "Sandbox", "SandboxError", "Verdict"]
