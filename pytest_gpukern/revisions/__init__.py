"""Measures the working tree and its base in turn, and judges paired ratios: `--gpukern-against=REV`.

Start with `comparison.py`.
"""
