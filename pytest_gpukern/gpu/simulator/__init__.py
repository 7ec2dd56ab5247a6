"""Switches Numba's CUDA simulator on and mends what would make it lie.

Start with `switch.py`. Loading it loads the standard library only; `activate` imports Numba and NumPy.
"""
