"""Says what is wrong with an installation, and what a machine has.

Start with `machine.py` (what is there) and `checks.py` (what follows).
"""
