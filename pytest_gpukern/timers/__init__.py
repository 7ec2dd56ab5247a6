"""Takes samples of a call, with one file for each timer.

Start with `timer.py`, the Protocol. `launch_queue.py` keeps launches ahead of the GPU, `replay.py` captures
graphs.
"""
