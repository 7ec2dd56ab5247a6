"""Says whether an output has the same bits in every launch, in every launch of a process, or is close."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pytest_gpukern.values.result import hash_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Determinism(enum.StrEnum):
    """How far the bits of an output are the same for the same inputs, code and device."""

    BITWISE = "bitwise"
    """Every launch gave the same bits: in this session, and in those that are recorded of the same code."""
    RUN_TO_RUN = "run-to-run"
    """Every launch of a process gave the same bits, but processes differ: a choice made at start-up."""
    TOLERANT = "tolerant"
    """Launches of one process gave other bits, each within the tolerance: the order of the work varies."""


def of_launches(bits: Sequence[str | None]) -> Determinism | None:
    """What launches of one process on the same inputs show, from the hashes of an output after each.

    None where there are fewer than two, or one could not be hashed. A `BITWISE` rests on these launches: what
    differs seldom is found by more of them, or by later sessions.
    """
    if len(bits) < 2 or None in bits:
        return None
    return Determinism.BITWISE if len(set(bits)) == 1 else Determinism.TOLERANT


def of_sessions(found: Iterable[tuple[str | None, str | None]]) -> Determinism | None:
    """What sessions show together, from what each found and its hash, of the same inputs and machine code.

    None where no session looked. A session that found `TOLERANT` decides; else hashes by one method that
    differ between sessions make it `RUN_TO_RUN`.
    """
    looked = [(kind, bits) for kind, bits in found if kind is not None]
    kinds = {kind for kind, _ in looked}
    if not kinds:
        return None
    if Determinism.TOLERANT in kinds:
        return Determinism.TOLERANT
    by_method: dict[str, set[str]] = {}
    for _, bits in looked:
        if bits is not None:
            by_method.setdefault(hash_method(bits), set()).add(bits)
    differ = any(len(each) > 1 for each in by_method.values())
    return Determinism.RUN_TO_RUN if differ or Determinism.RUN_TO_RUN in kinds else Determinism.BITWISE
