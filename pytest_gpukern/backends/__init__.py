"""Opens the libraries that variants are written with, one file a library.

Start with `backend.py`: the Protocol, and the table of backends.
"""
