"""Holds the values that travel, what a run was asked, and safe reading and writing of files.

Start with `result.py` and `settings.py`.
"""
