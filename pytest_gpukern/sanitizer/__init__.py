"""Runs each test once under tools of compute-sanitizer, and says which test a finding belongs to.

Start with `sanitized_run.py`. A session under a tool (`sessions.py`, `tool.py`, and inside it
`child_setup.py`) leaves files. `judge.py` judges them, `finding.py` puts a finding into words.
`self_check.py` checks that a tool works on this card.
"""
