# SPDX-License-Identifier: Apache-2.0
"""The tables and figures of the paper from a folder of runs: `python recipes/paper_report.py <folder>`."""
