"""Reads CUPTI's activity records, and the machine code of loaded modules. No other code uses CUPTI.

Start with `timer.py`; `activity.py` has the records and `machine_code.py` the modules.
"""
