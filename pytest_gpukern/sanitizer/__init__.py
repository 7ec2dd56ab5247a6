"""Runs each test once under tools of compute-sanitizer, and tells whose fault a finding is.

Start with `plugin.py`. A session under a tool (`sessions.py`, `tool.py`, and inside it `child_setup.py`)
leaves files; `judge.py` says what they come to, `finding.py` what was found, `messages.py` what the test
says. `self_check.py` has a tool show that it works here.
"""
