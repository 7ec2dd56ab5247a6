"""Which device `--gpukern-device` means: by position, UUID or name, and never one of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.model import short_uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gpu.model import Device

_OPTION = "--gpukern-device"
_MOST_DIGITS = 9  # of a position; Python refuses to convert thousands


def select(spec: str | None, devices: Sequence[Device]) -> Device:
    """Return the one device of `devices` (from `visible_devices`) that `spec` names; the first for None.

    `spec` is, upper and lower case alike:
    - a position in `devices`: under CUDA_VISIBLE_DEVICES its order, else NVML's, that of nvidia-smi;
    - a UUID or its beginning, with or without "GPU-" or "MIG-";
    - a whole name (which goes before a part of one) or a part of a name. A number of one or two digits is
      always a position, so that 9 on a machine with two cards does not turn into the "RTX 4090".

    Raises DeviceError when it names none or several, with the devices there are and spellings that work.
    """
    if not devices:
        asked = "" if spec is None else f"{_OPTION}={spec}: "
        raise DeviceError(f"{asked}no GPU is visible to this process")
    if spec is None:
        return devices[0]
    matches = _matches(spec.strip().lower(), devices)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise _error(spec, "names no visible device.", devices, devices)
    alike = len({device.name for device in matches}) == 1
    hint = " Their names are the same and cannot tell them apart: use a UUID." if alike else ""
    raise _error(spec, f"names {len(matches)} devices.{hint}", matches, devices)


def _matches(spec: str, devices: Sequence[Device]) -> list[Device]:
    if not spec:
        return []
    if spec.isascii() and spec.isdigit() and len(spec) <= _MOST_DIGITS:
        if int(spec) < len(devices):
            return [devices[int(spec)]]
        if len(spec) < 3:
            return []
    exact = [device for device in devices if spec in {device.name.lower(), device.uuid.lower()}]
    return exact or [
        device for device in devices if _uuid_starts(device, spec) or spec in device.name.lower()
    ]


def _uuid_starts(device: Device, spec: str) -> bool:
    uuid = device.uuid.lower()
    return spec not in {"gpu-", "mig-"} and (uuid.startswith(spec) or uuid.partition("-")[2].startswith(spec))


def _error(spec: str, problem: str, named: Sequence[Device], devices: Sequence[Device]) -> DeviceError:
    lines = [f"{_OPTION}={spec!r} {problem}", "Visible devices:"]
    lines += (f"  {position}: {device.name}, {device.uuid}" for position, device in enumerate(devices))
    position = next(position for position, device in enumerate(devices) if device is named[0])
    prefix = short_uuid(named[0].uuid, [device.uuid for device in devices])
    lines.append(f"Valid, for example: {_OPTION}={position} or {_OPTION}={prefix}")
    return DeviceError("\n".join(lines))
