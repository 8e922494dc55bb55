# SPDX-License-Identifier: Apache-2.0
"""What the trainer needs beside TRL: engines, collectives, one step's record, metrics, audit log, interrupts."""
