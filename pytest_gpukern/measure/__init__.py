"""Takes samples until the median is known, and says whether they count.

Start with `measure.py`; `validity.py` decides what counts.
"""
