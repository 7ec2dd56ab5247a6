"""Takes samples of a call, one file a timer.

Start with `timer.py`: the Protocol. `launch_queue.py` keeps launches ahead of the GPU, `replay.py` captures
graphs.
"""
