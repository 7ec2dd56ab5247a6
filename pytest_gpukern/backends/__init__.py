"""Opens the libraries that variants are written with, one file a library.

Start with `backend.py`, the base class; `values/backend_table.py` lists what there is.
"""
