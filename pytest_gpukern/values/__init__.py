"""Defines the values that travel and the settings of a run, and reads and writes files safely.

Start with `result.py` and `settings.py`.
"""
