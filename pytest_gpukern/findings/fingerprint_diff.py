"""What differs between the fingerprint of a session and those of a record, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpukern.values.result import JsonDict

NOT_INSTALLED = "none"

_OF_THE_DEVICE = (
    ("driver_version", "driver", ""),
    ("cuda_driver_version", "CUDA", ""),
    ("power_limit_w", "power limit", " W"),
    ("max_sm_clock_mhz", "highest SM clock", " MHz"),
    ("max_memory_clock_mhz", "highest memory clock", " MHz"),
    ("mig_profile", "MIG profile", ""),
    ("device_uuid", "device", ""),
)
_OF_THE_HOST = (
    ("cpu_model", "processor", ""),
    ("cpu_count", "CPUs", ""),
    ("platform", "system", ""),
    ("python_version", "Python", ""),
    ("blas", "BLAS", ""),
)
"""Field of a fingerprint, what it is called, and its unit."""


def differences(now: JsonDict, recorded: Sequence[JsonDict], *, host: bool) -> tuple[str, ...]:
    """What a session has that no recorded session had: `driver 580.65 → 580.95`, `numba 0.67 → 0.68`.

    What a recorded session does not tell, as one of an older release, is no difference.

    Args:
        now: fingerprint of the new session.
        recorded: fingerprints of the recorded sessions, oldest first.
        host: whether the host's processor is what matters, as for its own times, rather than the device.
    """
    rows = _OF_THE_HOST if host else _OF_THE_DEVICE
    found = [
        _difference(label, unit, now.get(field), [each[field] for each in recorded if field in each])
        for field, label, unit in rows
    ]
    libraries: Mapping[str, Any] = now.get("libraries") or {}
    before = [each["libraries"] for each in recorded if isinstance(each.get("libraries"), dict)]
    for name in sorted({*libraries, *(name for each in before for name in each)}):
        versions = [each.get(name, NOT_INSTALLED) for each in before]
        found.append(_difference(name, "", libraries.get(name, NOT_INSTALLED), versions))
    return tuple(text for text in found if text is not None)


def _difference(label: str, unit: str, now: Any, recorded: Sequence[Any]) -> str | None:
    if now is None or now in recorded:
        return None
    known = dict.fromkeys(_text(value) for value in recorded if value is not None)
    if not known:
        return None
    return f"{label} {' or '.join(known)} → {_text(now)}{unit}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
