# SPDX-License-Identifier: Apache-2.0
"""New weights on vLLM's CPU backend, with tied embeddings.

That backend multiplies with packed copies of the weights. vLLM's `reload_weights` packs every layer that it loads, but
tied weights arrive once, as the embedding: the packed copy of the output layer stays the old one, and the engine goes
on sampling from a partly stale policy without a word.
"""

from functools import wraps
from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def mend_reload() -> None:
    """Let every model runner of this process pack its output layer after `reload_weights`, however that is called."""
    original = GPUModelRunner.reload_weights
    if original.__module__ == __name__:
        return

    @wraps(original, assigned=("__name__", "__doc__"))
    def reload_weights(runner: Any, *args: Any, **kwargs: Any) -> None:
        original(runner, *args, **kwargs)
        head = runner.get_model().lm_head
        head.quant_method.process_weights_after_loading(head)

    GPUModelRunner.reload_weights = reload_weights
