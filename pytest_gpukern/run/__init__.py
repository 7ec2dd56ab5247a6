"""Runs one test: the spine from a case or a call to its result. Knows no plugin class.

Start with `spine.py`. `extra_sessions.py` measures a test again in fresh processes.
"""
