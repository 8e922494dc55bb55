# SPDX-License-Identifier: Apache-2.0
"""How a vLLM server fails a run. Apart from its client, whose libraries a plain installation does not have."""


class ServerError(RuntimeError):
    """The server cannot serve this run; the text says what to change."""


class ServerLost(ServerError):
    """The server does not answer or has dropped requests. It may come back, but with the weights it started with."""
