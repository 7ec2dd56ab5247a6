"""Launches a variant or makes a call, and says what is wrong with its results.

Start with `check_variant.py` for cases of problems and `check_call.py` for plain tests.
"""
