"""Describes the memory of arrays on the host: strides, guard zones, layouts, comparison and tolerance.

Start with `compare.py`. Nothing here knows of a GPU or of pytest.
"""
