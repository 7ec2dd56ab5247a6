"""Says which release of the package this is, and where it lies."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"
FOLDER = Path(__file__).parent
SUITES = (FOLDER / "suites", FOLDER.parent / "suites")
"""Where our own suites and their records may lie: in the installed package, or beside it in a checkout."""
