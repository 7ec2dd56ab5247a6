"""Takes samples until the median is known, and says whether they count.

Start with `measure.py`; `observers.py` says what looks at the device meanwhile.
"""
