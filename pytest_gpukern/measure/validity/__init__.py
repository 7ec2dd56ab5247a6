"""Decides whether the samples of a batch may be believed, from what was seen around it. Needs no hardware.

Start with `disturbance.py`; `recovery.py` pauses and gives up.
"""
