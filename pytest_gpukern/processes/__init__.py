"""Starts processes that run tests, tells them what to run, hears and ends them. Knows bytes, not pytest.

Start with `process.py`. `messages.py` lists what is said; `sessions.py` runs named tests in fresh processes.
"""
