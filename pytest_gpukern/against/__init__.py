"""`--gpukern-against=REV`: the working tree and its base measured in turn, and judged by paired ratios."""

from __future__ import annotations

from pytest_gpukern.against.plugin import Against

__all__ = ["Against"]
