# SPDX-License-Identifier: Apache-2.0
"""The text of a completion in TRL's two forms."""

from typing import Any

Completion = str | list[dict[str, Any]]


def completion_text(completion: Completion | None) -> str:
    """Text of a plain or conversational completion: of the latter, the text parts of the last message.

    Args:
        completion (str | list[dict] | None): As TRL hands it to a reward function.

    Returns:
        str: The text; empty where there is none.
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")
