# SPDX-License-Identifier: Apache-2.0
"""The layer between the loop and TRL: collaborators that `DUETGRPOTrainer` holds. It alone overrides TRL."""
