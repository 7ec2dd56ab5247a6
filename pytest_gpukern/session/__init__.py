"""Knows pytest: plugin classes, collection, configuration and the end of a test. It touches no GPU.

Start with `stash.py`, which says what role this process has; `isolation.py` has tests run in another one.
"""
