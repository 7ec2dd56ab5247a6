"""Turns what a run found out into text and files.

Start with `forms.py`: it lists the forms of a report, and holds the one value that each is made of.
"""
