"""Turns what a run found out into text and files.

Start with `terminal.py`; `run_file.py` is the file of a run.
"""
