"""Says whether an output has the same bits in every launch, in every launch of a process, or is close."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from pytest_gpukern.values.result import hash_method


class Determinism(enum.StrEnum):
    """Says how far the bits of an output are the same for the same inputs, code and device."""

    BITWISE = "bitwise"
    """All launches gave the same bits, in this session and in recorded sessions of the same code."""
    RUN_TO_RUN = "run-to-run"
    """All launches of a process gave the same bits, but processes differ: a choice made at start-up."""
    TOLERANT = "tolerant"
    """Launches of one process gave different bits, all within the tolerance: the order of work varies."""


def of_launches(bits: Sequence[str | None]) -> Determinism | None:
    """Returns what launches of one process on the same inputs show, by an output's hash after each.

    Returns None for fewer than two launches, or if one could not be hashed. `BITWISE` rests on these launches
    only: more of them, or later sessions, may find a rare difference.
    """
    if len(bits) < 2 or None in bits:
        return None
    return Determinism.BITWISE if len(set(bits)) == 1 else Determinism.TOLERANT


def of_sessions(sessions: Iterable[tuple[str | None, str | None]]) -> Determinism | None:
    """Returns what sessions with the same inputs and machine code show, by what each found and its hash.

    Returns None if no session looked. A session that found `TOLERANT` decides. Else it is `RUN_TO_RUN` if
    hashes by one method differ between sessions.
    """
    looked = [(kind, bits) for kind, bits in sessions if kind is not None]
    kinds = {kind for kind, _ in looked}
    if not kinds:
        return None
    if Determinism.TOLERANT in kinds:
        return Determinism.TOLERANT
    hashes = {bits for _, bits in looked if bits is not None}
    differ = len(hashes) > len(set(map(hash_method, hashes)))
    return Determinism.RUN_TO_RUN if differ or Determinism.RUN_TO_RUN in kinds else Determinism.BITWISE
