"""Starts child sessions of pytest, tells them what to run and hears what they found.

Start with `child_sessions.py`; `child_main.py` is what runs in the child.
"""
