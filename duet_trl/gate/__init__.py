# SPDX-License-Identifier: Apache-2.0
"""Phase 2 (Section 3.2): when a rollout stops.

Answer markers are compiled to a token automaton, the gate reads the automaton's state once per decode step, and
the trainer replays the same gate on the returned token ids. Inference workers import this package, so it stays
free of transformers, trl and vllm; import the module you need.
"""
