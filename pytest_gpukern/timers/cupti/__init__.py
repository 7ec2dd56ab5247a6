"""Reads CUPTI: activity records, loaded modules and their machine code. No other code does.

Start with `timer.py`.
"""
