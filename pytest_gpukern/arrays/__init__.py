"""Describes the memory of arrays on the host: strides, guard zones, layouts, comparison and tolerance.

Start with `compare.py`. Nothing here knows about a GPU or pytest.
"""
