"""Tells whether a GPU kernel is still right and still fast: a pytest plugin and benchmark suites."""

__version__ = "0.1.0"
