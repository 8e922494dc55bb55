# SPDX-License-Identifier: Apache-2.0
"""Phase 1 of DUET: who gets how many rollouts (paper, section 3.1).

`neyman` solves Theorem 1, `surrogate` and `statistics` estimate what it needs from past steps, `budget` says what B
is, and `allocators` puts them together behind the interface every allocation rule shares. `openness` says what a
rollout is worth and what a token costs.
"""
