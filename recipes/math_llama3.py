# SPDX-License-Identifier: Apache-2.0
# accelerate launch --config_file recipes/accelerate/fsdp2.yaml recipes/math_llama3.py \
#     --config recipes/configs/math_llama3_3b_duet_50.yaml    (8 x H100 80 GB)
"""Trains Llama-3.2-3B-Instruct on MATH, the paper's cross-family check, one cell per configuration.

Data, reward and training are those of math_qwen3.py. The configurations differ: a lower learning rate and a higher KL
coefficient (the paper gives no numbers: 1e-6 and 1e-2 are ours), and a fixed date in the chat template, whose system
block would otherwise change with the day. The model is gated: accept its terms on the Hub and log in first.
"""

from math_qwen3 import main
from run import start

if __name__ == "__main__":
    start("math_llama3", main)
