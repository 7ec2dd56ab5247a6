"""Defines what users declare: problems, axes, inputs, outputs, variants and their cases.

Start with `problem.py`.
"""
