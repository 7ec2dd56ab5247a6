"""`python -m pytest_gpukern.selftest.gate_child FILE NUMBER [walls] [nvbench]`: one session for the gate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.selftest.gate_recording import GateSession, sparse
from pytest_gpukern.selftest.gate_session import run_gate_session
from pytest_gpukern.selftest.recording import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Measures one session on the device that the parent has pinned and locked.

    Args:
        arguments: the file to write, the number of the session, and what of `walls` and `nvbench` is wanted.
    """
    into, number, *others = arguments

    def save(session: GateSession) -> None:
        write_text(Path(into), json.dumps(sparse(session), ensure_ascii=False, allow_nan=False))

    run_gate_session(int(number), walls="walls" in others, nvbench="nvbench" in others, save=save)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
