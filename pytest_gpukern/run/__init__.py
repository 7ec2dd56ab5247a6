"""Runs tests: the spine from a case or a call to its result, and the plugin classes around it.

Start with `spine.py`.
"""
