# SPDX-License-Identifier: Apache-2.0
"""What stands between the loop and TRL: collaborators that `DUETGRPOTrainer` holds. It alone overrides TRL."""
