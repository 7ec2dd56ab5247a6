"""Holds the errors of a device; users see their messages as they are."""

from __future__ import annotations

from pytest_gpukern.values.untrusted_json import printable_lines


class DeviceError(Exception):
    """A device cannot be used as asked; the message is complete and names the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(printable_lines(message))


class NvmlUnavailable(Exception):  # noqa: N818  (a state, which most callers expect)
    """NVML cannot be asked about GPUs; the message says why in words."""


class DeviceLockTimeout(DeviceError):  # noqa: N818  (as TimeoutExpired)
    """A device stayed in use for longer than the caller would wait; the message names the holder."""
