# SPDX-License-Identifier: Apache-2.0
"""Long and large runs without a model: the real methods over prompts whose answers, rewards and lengths are drawn.

`population` says what a policy does on each prompt, `acting` answers a method's jobs with it, `course` runs many steps
and watches, `serving` turns lengths into seconds. docs/operations.md#simulate-a-large-run states the assumptions.
"""
