"""Reads CUPTI: activity records, loaded modules and their machine code. No other code does.

Start with `timer.py`; `activity.py` has the records and `machine_code.py` the modules.
"""
