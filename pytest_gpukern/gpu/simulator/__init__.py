"""Switches Numba's CUDA simulator on and mends what would make it lie.

Start with `switch.py`, which says when it is on and lists what is mended. Importing a module here loads the
standard library only; `activate` imports Numba and NumPy.
"""
