"""What runs under a tool that is to show that it works: `python -m pytest_gpukern.sanitizer.planted TOOL`."""

from __future__ import annotations

import contextlib
import sys


def main(arguments: list[str]) -> int:
    """Commits the fault that a tool is to find."""
    from pytest_gpukern.sanitizer.planted_faults import commit

    with contextlib.suppress(Exception):  # the tool may end the context at the fault
        commit(arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
