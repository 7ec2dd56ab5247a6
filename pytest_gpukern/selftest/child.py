"""`python -m pytest_gpukern.selftest.child FILE [rivals]`: one session in this process, written to FILE."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.selftest.recording import Session, write_json
from pytest_gpukern.selftest.session import run_session

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Takes the readings of one session on the device that the parent has pinned and locked.

    Args:
        arguments: the file to write, and `rivals` where other tools are measured too.
    """
    into = Path(arguments[0])

    def save(session: Session) -> None:
        write_json(into, dataclasses.asdict(session))

    run_session(rivals="rivals" in arguments[1:], save=save)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
