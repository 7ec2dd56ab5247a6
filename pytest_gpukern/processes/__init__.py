"""Starts child sessions of pytest, tells them what to run and reads what they found.

Start with `child_sessions.py`; `child_main.py` runs in the child.
"""
