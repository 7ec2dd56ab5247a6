"""Reads the XML that compute-sanitizer saves its records in (`--xml --save FILE`).

NVIDIA documents a part of the format, for suppressions
(https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html#error-suppression) and promises nothing
of the rest. The names here are those of recorded files (`tests/unit/data/sanitizer`). A record with other
parts is a finding all the same: nothing is dropped for its form.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from pytest_gpukern.sanitizer.finding import Access, Finding, Index, Place

ROOT = "ComputeSanitizerOutput"
_MOST_BYTES = 64 * 2**20


class ReportError(Exception):
    """The XML cannot be read, or is not whole; the message says what is wrong."""


def findings_in(text: str) -> tuple[Finding, ...]:
    """Every record, in the order of the file.

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
    return tuple(_finding(record) for record in root.iter("record"))


def _finding(record: ElementTree.Element) -> Finding:
    kind = _own(record, "kind") or "record"
    _leave_out_nameless_frames(record)
    device = [place for where in record.iter("where") if (place := _place(where)) != Place()]
    return Finding(
        kind=kind,
        text=_said(record) or kind,
        kernel=next((place.function for place in device if place.function), None),
        block=_index(record, "blockIdx"),
        thread=_index(record, "threadIdx"),
        accesses=_accesses(record),
        device=tuple(dict.fromkeys(device)),
        host=tuple(_place(frame) for stack in record.iter("hostStack") for frame in stack.iter("frame")),
        record=ElementTree.tostring(record, encoding="unicode").strip(),
    )


def _leave_out_nameless_frames(record: ElementTree.Element) -> None:
    """Frames of the host that are an address in a library, and say nothing to anybody."""
    for stack in record.iter("hostStack"):
        for frame in stack.findall("frame"):
            if _place(frame) == Place():
                stack.remove(frame)


def _said(record: ElementTree.Element) -> str:
    """The sentence of a record, and the type that a barrier's error has besides; else all its short texts."""
    what = record.find("what")
    if what is None:
        return ""
    text, kind = _own(what, "text"), _own(what, "type")
    if text is None:
        text = " ".join(part.strip() for part in what.itertext() if part.strip())
    elif kind is not None:
        text = f"{text}: {kind[:1].lower()}{kind[1:]}"
    return " ".join(text.split())


def _accesses(record: ElementTree.Element) -> tuple[Access, ...]:
    """Both accesses of a hazard."""
    threads = (record.find(f"what/{name}") for name in ("thread0", "thread1"))
    return tuple(
        Access(_own(thread, "access") or "access", _index(thread, "threadIdx"), _place(thread.find("where")))
        for thread in threads
        if thread is not None
    )


def _place(element: ElementTree.Element | None) -> Place:
    if element is None:
        return Place()
    line = _own(element, "line")
    return Place(
        function=_own(element, "func"),
        file=_own(element, "path"),
        line=int(line) if line is not None and line.isdecimal() and int(line) > 0 else None,
    )


def _index(record: ElementTree.Element, name: str) -> Index | None:
    for element in record.iter(name):
        try:
            x, y, z = (int(_own(element, axis) or "") for axis in "xyz")
        except ValueError:
            continue
        return x, y, z
    return None


def _own(element: ElementTree.Element, name: str) -> str | None:
    """The text of a child of this name."""
    text = element.findtext(name)
    return text.strip() or None if text is not None else None
