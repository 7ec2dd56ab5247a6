"""Takes samples until the median is known, and says whether they count.

Start with `measure.py`; `sampler.py` decides how many samples come next.
"""
