"""Tests on a real machine what the timers can resolve: `gpukern selftest`.

The command (`cli/selftest.py`) has pytest measure the kernels (`kernels`) of the tests in `test_timers`, in
several sessions, reads the file of that run, and holds it against `targets`. Start with `test_timers`.
"""
