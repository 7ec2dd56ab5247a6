"""Switches Numba's CUDA simulator on and fixes what makes its answers wrong.

Start with `switch.py`: it says when the simulator is on and lists the fixes. Importing it loads only the
standard library; `activate` imports Numba, NumPy and greenlet, which no run on a GPU needs.
"""
