# SPDX-License-Identifier: Apache-2.0
"""The environment in which vLLM and training share a few CPU cores; it must be set before either is imported."""

ENVIRONMENT = {
    # Threads of torch, in training and in the engine. A model this small gains next to nothing from a second one, and
    # threads that wait for each other crawl as soon as anything else runs on the machine.
    "OMP_NUM_THREADS": "1",
    # vLLM would otherwise pin its threads to cores that training uses as well.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # GiB; the default reserves a share of the machine's memory.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The engine runs in the training process: no second process to feed with weights and tokens.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Leave the terminal to the lines of the run.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "TOKENIZERS_PARALLELISM": "false",
}
