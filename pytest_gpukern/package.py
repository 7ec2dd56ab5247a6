"""Says which release of the package this is, and where it lies."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"
FOLDER = Path(__file__).parent
