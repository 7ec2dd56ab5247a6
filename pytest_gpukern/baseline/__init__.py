"""Keeps what is known of earlier sessions: records, their file format and the store.

Start with `record.py` (what is kept) and `store.py` (who reads and writes it).
"""
