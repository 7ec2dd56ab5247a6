"""Opens the libraries that variants are written with, one file for each library.

Start with `backend.py`, the base class; `values/backend_table.py` lists the backends.
"""
