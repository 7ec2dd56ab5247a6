"""Reads the XML that compute-sanitizer saves its records in (`--xml --save FILE`).

NVIDIA documents a part of the format, for suppressions
(https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html#error-suppression) and promises nothing
of the rest. So records and their parts are found by walking, wherever they are nested, by any name that is
known for them, and a record with unknown parts is a finding all the same: nothing is dropped for its form.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

from pytest_gpukern.sanitizer.finding import Finding, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpukern.sanitizer.finding import Index

ROOT = "ComputeSanitizerOutput"
_NO_FAULTS = ("LaunchInfo", "SyncLog")
"""Kinds of records that tell what happened, and blame nothing."""
_OF_THE_HOST = ("hostStack", "hostAccessStack", "hostMemOpStack")
_THREAD = ("threadIdx", "threadId", "thread")
_BLOCK = ("blockIdx", "blockId", "block")
_FRAMES = ("where", "frame")
_DRIVER = ("libcuda", "libcudart", "nvcuda")
_MOST_BYTES = 64 * 2**20


class ReportError(Exception):
    """The XML cannot be read, or is not whole; the message says what is wrong."""


def findings_in(text: str) -> tuple[Finding, ...]:
    """Every record that blames something, in the order of the file.

    Raises:
        ReportError: it is no XML, not all of it, or not compute-sanitizer's.
    """
    if len(text) > _MOST_BYTES:
        raise ReportError(f"its XML has {len(text) / 2**20:.0f} MiB, more than anybody can read")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ReportError("its XML declares entities, which the tool never does")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ReportError(f"its XML is not whole: {error}") from error
    if root.tag != ROOT:
        raise ReportError(f"its XML begins with <{root.tag}>, not with <{ROOT}>")
    return tuple(_finding(record) for record in root.iter("record") if _blames(record))


def _blames(record: ElementTree.Element) -> bool:
    return _text(record, "kind") not in _NO_FAULTS and (_text(record, "level") or "").lower() != "info"


def _finding(record: ElementTree.Element) -> Finding:
    kind = _text(record, "kind") or "record"
    host = [_place(frame) for stack in _all(record, _OF_THE_HOST) for frame in stack.iter("frame")]
    device = [place for element in _on_the_device(record) if (place := _place(element)) != Place()]
    return Finding(
        kind=kind,
        text=_said(record) or kind,
        kernel=next((place.function for place in device if place.function), None),
        block=_index(record, _BLOCK),
        thread=_index(record, _THREAD),
        device=tuple(dict.fromkeys(device)),
        host=tuple(reversed(host)) if _is_outermost_first(host) else tuple(host),
        record=ElementTree.tostring(record, encoding="unicode").strip(),
    )


def _said(record: ElementTree.Element) -> str:
    """The sentence of a record; else all the short texts that say what it is about."""
    what = next(record.iter("what"), None)
    if what is None:
        return ""
    text = _text(what, "text")
    if text is None:
        text = " ".join(part.strip() for part in what.itertext() if part.strip())
    return " ".join(text.split())


def _on_the_device(record: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Elements that name a place in a kernel: `where` and frames, but for those of the host's stacks."""
    for child in record:
        if child.tag in _OF_THE_HOST:
            continue
        if child.tag in _FRAMES:
            yield child
        yield from _on_the_device(child)


def _place(element: ElementTree.Element) -> Place:
    line = _own(element, "line")
    return Place(
        function=_own(element, "func") or _own(element, "function"),
        file=_own(element, "path") or _own(element, "file"),
        line=int(line) if line is not None and line.isdecimal() and int(line) > 0 else None,
        module=_own(element, "module"),
    )


def _is_outermost_first(frames: list[Place]) -> bool:
    """Whether a stack ends, not begins, in the driver: both orders are seen, and none is promised."""

    def is_driver(place: Place) -> bool:
        named = f"{place.module or ''} {place.function or ''}"
        return any(name in named for name in _DRIVER) or (place.function or "").startswith(
            ("cuLaunch", "cuda")
        )

    return bool(frames) and is_driver(frames[-1]) and not is_driver(frames[0])


def _index(record: ElementTree.Element, names: tuple[str, ...]) -> Index | None:
    for element in _all(record, names):
        try:
            x, y, z = (int(_own(element, axis) or "") for axis in "xyz")
        except ValueError:
            continue
        return x, y, z
    return None


def _all(record: ElementTree.Element, names: tuple[str, ...]) -> Iterator[ElementTree.Element]:
    return (element for element in record.iter() if element.tag in names)


def _text(element: ElementTree.Element, name: str) -> str | None:
    """The text of the first element of this name, however deep."""
    found = next(element.iter(name), None)
    return None if found is None or found.text is None or not found.text.strip() else found.text.strip()


def _own(element: ElementTree.Element, name: str) -> str | None:
    """The text of a child of this name."""
    text = element.findtext(name)
    return text.strip() or None if text is not None else None
