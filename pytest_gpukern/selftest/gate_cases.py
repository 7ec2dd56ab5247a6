"""The cases of `gpukern selftest --gate`: kernels that stay as they are, and some with a little more work.

The work of a planted case is exactly (1 + share) times that of its base: so many more trips through the same
loop, or so many more elements.
"""

from __future__ import annotations

from dataclasses import dataclass

PLANTED_SHARES = (0.005, 0.01, 0.02, 0.05)
SHORT_TRIPS, LONG_TRIPS = 400, 9_600
ADD_ELEMENTS = 32_000_000
_MI = 1 << 20


@dataclass(frozen=True)
class GateCase:
    """One kernel at one size under one cache policy.

    Attributes:
        id: what it is called.
        kernel: which: `nothing`, `scale`, `add`, `copy`, `driver copy`, `sum`, `histogram`, `transpose`,
            `gemm`, `fma` or `chase`.
        size: elements, bytes of a copy, rows of a matrix, trips of a loop or steps of a chain.
        cache: `cold` or `hot`.
        base: the id of the case whose work this one's exceeds; empty for one that stays as it is.
        share: by how much, 0.01 for 1 %.
    """

    id: str
    kernel: str
    size: int
    cache: str
    base: str = ""
    share: float = 0.0


_UNCHANGED = (
    ("empty launch", "nothing", 1, "cold hot"),
    ("scale 64 K f32", "scale", 65_536, "cold hot"),
    ("scale 1 M f32", "scale", 1_000_000, "cold hot"),
    ("scale 10 M f32", "scale", 10_000_000, "cold hot"),
    ("scale 100 M f32", "scale", 100_000_000, "cold"),
    ("copy 1 MiB", "copy", _MI, "cold"),
    ("copy 16 MiB", "copy", 16 * _MI, "cold hot"),
    ("copy 256 MiB", "copy", 256 * _MI, "cold"),
    ("driver's copy 64 MiB", "driver copy", 64 * _MI, "cold"),
    ("sum 1 M u32", "sum", 1_000_000, "cold hot"),
    ("sum 32 M u32", "sum", 32_000_000, "cold"),
    ("histogram 10 M u32", "histogram", 10_000_000, "cold"),
    ("transpose 4096 f32", "transpose", 4096, "cold"),
    ("gemm 256 f32", "gemm", 256, "cold hot"),
    ("gemm 1024 f32", "gemm", 1024, "cold"),
    ("gemm 2048 f32", "gemm", 2048, "cold"),
    ("chase 256 steps", "chase", 256, "cold hot"),
    ("fma 400 trips", "fma", SHORT_TRIPS, "hot"),
)
_BASES = (
    ("fma 9600 trips", "fma", LONG_TRIPS),
    ("add 32 M f64", "add", ADD_ELEMENTS),
    ("fma 400 trips", "fma", SHORT_TRIPS),
)
"""Compute-bound for 1.2 ms, memory-bound for 130 µs, compute-bound for 50 µs on an H200; cold."""


def gate_cases() -> tuple[GateCase, ...]:
    """All cases: those that stay as they are, then each base with its planted ones behind it."""
    found = [
        GateCase(f"{name}, {cache}", kernel, size, cache)
        for name, kernel, size, caches in _UNCHANGED
        for cache in caches.split()
    ]
    for name, kernel, size in _BASES:
        base = GateCase(f"{name}, cold", kernel, size, "cold")
        found.append(base)
        for share in PLANTED_SHARES:
            more = round(size * (1 + share))
            found.append(GateCase(f"{name} +{100 * share:g} %, cold", kernel, more, "cold", base.id, share))
    return tuple(found)


def in_session_order(cases: tuple[GateCase, ...], number: int) -> list[GateCase]:
    """The cases in the order of session `number`, counted from 0.

    A base and its planted cases change places from session to session, so that no difference between them
    comes from who went first.
    """
    ordered = [case for case in cases if not case.base and not _planted(cases, case)]
    for base in (case for case in cases if _planted(cases, case)):
        family = [base, *_planted(cases, base)]
        turn = number % len(family)
        ordered += [*family[turn:], *family[:turn]]
    return ordered


def _planted(cases: tuple[GateCase, ...], base: GateCase) -> list[GateCase]:
    return [case for case in cases if case.base == base.id]
