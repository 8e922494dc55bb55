# SPDX-License-Identifier: Apache-2.0
"""The same gate on each inference engine.

Each module drives one engine and imports no other; this package imports none, so that it loads where only one of
them is installed.
"""
