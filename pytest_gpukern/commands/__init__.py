"""The commands of `gpukern`: modules with SUMMARY, DESCRIPTION, `add_options(parser)`, `run(parser, known)`.

Exit statuses, of all but `validate` (pytest's own) and `selftest` (which says its own): see `exits.py`.
"""
