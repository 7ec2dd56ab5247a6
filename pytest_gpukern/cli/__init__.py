"""Holds the commands of `gpukern`, one module a command.

Start with `main.py`, which lists them. `exits.py` has the exit statuses.
"""
