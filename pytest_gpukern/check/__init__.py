"""Launches a variant or a call and says what is wrong with it.

Start with `check_variant.py` for cases of problems and `check_call.py` for plain tests.
"""
