# SPDX-License-Identifier: Apache-2.0
"""A reload of weights that reaches tied output layers, in a vLLM server on a CPU that does not run the gate.

vllm serve <model> --worker-extension-cls duet_trl.engines.cpu_worker.CPUWorker
"""

from .vllm import mend_reload

mend_reload()


class CPUWorker:
    """vLLM loads this module for it."""
