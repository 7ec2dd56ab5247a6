"""Launches a variant or makes a call, and says what is wrong with its results.

Start with `engine.py`, which lists all checks. `check_variant.py` launches a problem's variants.
`check_call.py` makes a test's own calls, and `verify.py` compares what such a test verifies.
"""
