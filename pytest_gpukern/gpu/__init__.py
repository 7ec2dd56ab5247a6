"""Finds, chooses, pins, describes and locks the device; holds the CUDA layer under every GPU library.

Start with `model.py` (the device) and `runtime.py` (its context and stream). Importing a module here
loads the standard library alone: functions load NVML, CUDA and NumPy when they need them.
"""
