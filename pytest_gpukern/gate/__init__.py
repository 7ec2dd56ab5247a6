"""Turns recorded sessions and new times into a verdict. Pure statistics: it reads no file and no device.

Start with `judge.py`.
"""
