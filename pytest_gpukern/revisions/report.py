"""What a run says that measured two revisions: which ones at its head, what else it saw at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpukern.revisions.git import Revisions

_NAMED = 3


def heading(revisions: Revisions, sessions: int, code: Sequence[str]) -> list[str]:
    """The lines above the tables: what was compared, and of what it consisted.

    Args:
        revisions: the two.
        sessions: of both sides together.
        code: the modules of each side, in words, and whether they are the same.
    """
    lines = [f"gpukern: working tree against {revisions}, {sessions} sessions A-B-B-A"]
    if revisions.identical:
        lines.append("  the working tree is that commit, without changes: what differs is noise (A/A)")
    lines += [f"  {line}" for line in code]
    lines += [f"  {note}" for note in revisions.notes]
    return [*lines, "  times below are of the working tree; stored baselines take no part", ""]


def closing(
    same_code: Mapping[str, bool | None],
    *,
    new: Sequence[str],
    removed: Sequence[str],
    failed_on_base: Mapping[str, str],
) -> list[str]:
    """The lines below the tables.

    Args:
        same_code: test → whether its kernels' machine code is the same on both sides, where that is known.
        new: tests that the base has not.
        removed: tests that only the base has.
        failed_on_base: test → what was wrong with it there.
    """
    known = {nodeid: same for nodeid, same in same_code.items() if same is not None}
    changed = [nodeid for nodeid, same in known.items() if not same]
    lines = []
    if known:
        some = f" ({_some(changed)})" if changed else ""
        unknown = f", not known in {len(same_code) - len(known)}" if len(known) < len(same_code) else ""
        equal = len(known) - len(changed)
        same = f"machine code: same in {equal} case{'' if equal == 1 else 's'}"
        lines.append(f"{same}, changed in {len(changed)}{some}{unknown}")
    lines += [f"failed on the base, so not compared: {each}: {why}" for each, why in failed_on_base.items()]
    if new:
        lines.append(f"{len(new)} new, not in the base: {_some(new)}")
    if removed:
        lines.append(f"{len(removed)} removed since the base: {_some(removed)}")
    return [f"gpukern: {line}" for line in lines]


def _some(nodeids: Sequence[str]) -> str:
    shown = ", ".join(nodeids[:_NAMED])
    return f"{shown}, …" if len(nodeids) > _NAMED else shown
