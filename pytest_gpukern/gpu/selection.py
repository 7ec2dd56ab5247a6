"""Finds the devices this process may use, chooses the one `--gpukern-device` names, and pins it.

How CUDA reads CUDA_VISIBLE_DEVICES:
https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
(indices, UUID prefixes, one MIG instance, list cut at the first invalid entry),
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (MIG names). Undocumented: a repeated device hides
all devices, and forms do not mix. PyTorch recorded that with driver 525:
https://github.com/pytorch/pytorch/blob/main/test/test_cuda_nvml_based_avail.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack

from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.libcuda import CudaError, bare_uuid, load_library
from pytest_gpukern.gpu.model import Device, short_uuid
from pytest_gpukern.gpu.nvml import GpuRecord, Nvml, open_nvml

_OPTION = "--gpukern-device"
_MOST_DIGITS = 9  # of a position or index; Python refuses to convert thousands


def select(spec: str | None, devices: Sequence[Device]) -> Device:
    """Returns the one device of `devices` (from `visible_devices`) that `spec` names; the first for None.

    `spec` ignores case and is one of:
    - a position in `devices`, in the order of CUDA_VISIBLE_DEVICES or else of NVML and nvidia-smi;
    - a UUID or its beginning, with or without "GPU-" or "MIG-";
    - a name or a part of one; a full name wins over a part. A number of one or two digits is always a
      position, so that 9 on a machine with two cards does not turn into the "RTX 4090".

    Raises DeviceError if it names none or several; the message lists the devices and valid spellings.
    """
    if not devices:
        option = "" if spec is None else f"{_OPTION}={spec}: "
        raise DeviceError(f"{option}no GPU is visible to this process")
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
    named = [(device, device.name.lower(), device.uuid.lower()) for device in devices]
    prefixes = () if spec in {"gpu-", "mig-"} else (spec, f"gpu-{spec}", f"mig-{spec}")
    exact = [device for device, name, uuid in named if spec in {name, uuid}]
    return exact or [device for device, name, uuid in named if uuid.startswith(prefixes) or spec in name]


def _error(spec: str, problem: str, named: Sequence[Device], devices: Sequence[Device]) -> DeviceError:
    lines = [f"{_OPTION}={spec!r} {problem}", "Visible devices:"]
    lines += (f"  {position}: {device.name}, {device.uuid}" for position, device in enumerate(devices))
    position = next(position for position, device in enumerate(devices) if device is named[0])
    prefix = short_uuid(named[0].uuid, [device.uuid for device in devices])
    lines.append(f"Valid, for example: {_OPTION}={position} or {_OPTION}={prefix}")
    return DeviceError("\n".join(lines))


VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_RULES = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"


def visible_devices(nvml: Nvml, environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Returns the devices that CUDA_VISIBLE_DEVICES names, in its order; without it all, in NVML's order.

    A GPU split by MIG is replaced by its instances; if the variable names the GPU itself, by the first
    instance, as in CUDA. Empty if the variable hides everything on purpose ("", "-1", Slurm's "NoDevFiles").
    Entries after "-1" are hidden on purpose too.

    Raises DeviceError for a value that would make CUDA hide devices silently: an entry that is malformed, out
    of range, ambiguous, repeated, a second MIG instance or of another form than the first. An index is
    ambiguous too if only CUDA knows which of several models it means.
    """
    gpus = nvml.gpus()
    value = environ.get(VARIABLE)
    if value is None:
        parts = (part for gpu in gpus for part in (gpu.mig_instances if gpu.mig_enabled else (gpu,)))
        return tuple(Device(**vars(part), nvml=nvml) for part in parts)
    if not gpus or value.strip() == "NoDevFiles":  # Slurm sets it for a job without GPUs
        return ()
    entries = [entry.strip() for entry in value.split(",")]
    if not entries[-1]:
        entries.pop()  # a trailing comma is harmless
    if "-1" in entries:
        entries = entries[: entries.index("-1")]
    if any(_is_index(entry) for entry in entries):
        _refuse_unclear_indices(gpus, environ)
    devices: dict[str, Device] = {}
    named: dict[str, str] = {}
    forms = set()
    for entry in entries:
        try:
            form, part = _named(entry, gpus)
            forms.add(form)
            if len(forms) > 1:
                raise ValueError("has another form than the first entry, and CUDA stops there")
            if part.uuid in devices:
                raise ValueError(f"names the same device as {named[part.uuid]!r}, so CUDA hides every device")
            if part.mig_profile is not None and devices:
                raise ValueError("comes beside a MIG instance, and CUDA shows a process only one instance")
        except ValueError as problem:
            raise _misread(value, entry, problem, gpus) from None
        devices[part.uuid], named[part.uuid] = Device(**vars(part), nvml=nvml), entry
    return tuple(devices.values())


def missing_gpu_reason(environ: Mapping[str, str]) -> str | None:
    """Says why this process has no GPU to use, or returns None. Does not initialise CUDA.

    Raises DeviceError if there are GPUs but CUDA would not understand CUDA_VISIBLE_DEVICES.
    """
    cuda_problem = None
    try:
        load_library()
    except CudaError as error:
        cuda_problem = str(error)
    try:
        nvml = open_nvml()
    except NvmlUnavailable as error:
        return f"{error}; {cuda_problem or 'the CUDA library itself is there'}"
    with nvml:
        gpus = nvml.gpus()
        if not gpus:
            return "NVML lists GPUs, but this process may open none of them"
        visible = visible_devices(nvml, environ)
    count = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    if cuda_problem is not None:
        return f"NVML lists {count}, but {cuda_problem}"
    if visible:
        return None
    if VARIABLE in environ:
        return f"{VARIABLE}={environ[VARIABLE]!r} hides all of {count}"
    return "every GPU is in MIG mode and has no MIG instance"


def _is_index(entry: str) -> bool:
    return re.fullmatch(r"\+?[0-9]+", entry) is not None


def _refuse_unclear_indices(gpus: Sequence[GpuRecord], environ: Mapping[str, str]) -> None:
    """Raises DeviceError if CUDA may number the GPUs otherwise than NVML.

    With PCI_BUS_ID it does not. CUDA's default, FASTEST_FIRST, is undocumented, but keeps cards of one model
    in bus order.
    """
    models = {(gpu.name, gpu.compute_capability, gpu.memory_total_bytes) for gpu in gpus}
    if environ.get(_ORDER_VARIABLE) == "PCI_BUS_ID" or len(models) < 2:
        return
    raise DeviceError(
        f"{VARIABLE}={environ[VARIABLE]!r} names GPUs of different models by index, which CUDA may number in "
        f"another order than nvidia-smi.\n{_listing(gpus)}\n"
        f"Name them by UUID: {VARIABLE}={gpus[0].uuid}, or set {_ORDER_VARIABLE}=PCI_BUS_ID and use "
        f"these indices."
    )


def _named(entry: str, gpus: Sequence[GpuRecord]) -> tuple[str, GpuRecord]:
    """Returns the form of an entry, and the GPU or instance that it names; ValueError says why none."""
    if entry.startswith("MIG-"):
        form, named = "MIG", [mig for gpu in gpus for mig in gpu.mig_instances if mig.uuid == entry]
    elif _is_index(entry):
        digits = entry.lstrip("+0") or "0"
        form, named = "index", [gpu for place, gpu in enumerate(gpus) if str(place) == digits]
    else:
        form, named = "GPU", [gpu for gpu in gpus if len(entry) > len("GPU-") and gpu.uuid.startswith(entry)]
    if len(named) != 1:
        raise ValueError(f"names {len(named) or 'none'} of the devices below")
    (part,) = named
    if part.mig_enabled and not part.mig_instances:
        raise ValueError("is a GPU in MIG mode without any MIG instance")
    return form, part.mig_instances[0] if part.mig_enabled else part  # CUDA takes the first available


def _misread(value: str, entry: str, problem: ValueError, gpus: Sequence[GpuRecord]) -> DeviceError:
    instances = [mig.uuid for gpu in gpus for mig in gpu.mig_instances]
    prefix = short_uuid(gpus[0].uuid, [gpu.uuid for gpu in gpus])
    spellings = " or ".join(f"{VARIABLE}={valid}" for valid in ("0", prefix, *instances[:1]))
    return DeviceError(
        f"{VARIABLE}={value!r}: the entry {entry!r} {problem}. CUDA would hide devices without saying so.\n"
        f"{_listing(gpus)}\n"
        f"Valid, for example: {spellings}\nRules: {_RULES}"
    )


def _listing(gpus: Sequence[GpuRecord]) -> str:
    lines = ["Devices, numbered as nvidia-smi does:"]
    for position, gpu in enumerate(gpus):
        lines.append(f"  {position}: {gpu.name}, {gpu.uuid}")
        lines.extend(f"     {mig.name}, {mig.uuid}" for mig in gpu.mig_instances)
    return "\n".join(lines)


def pin(device: Device, environ: MutableMapping[str, str]) -> ExitStack:
    """Makes `device` CUDA's only device, with ordinal 0, for this process and those it starts.

    Sets CUDA_VISIBLE_DEVICES to the UUID, which MIG instances have too and which does not depend on an order,
    and CUDA_DEVICE_ORDER=PCI_BUS_ID. The simulator needs no pin: nothing changes. `environ` is os.environ in
    a real run, since CUDA reads that. Closing what it returns puts the variables back.

    Raises DeviceError if CUDA is already initialised in this process with another device as ordinal 0.
    """
    undo = ExitStack()
    if device.is_simulated:
        return undo
    if device.cuda.is_initialized():
        _require_first(device)
    for name, value in ((VARIABLE, device.uuid), (_ORDER_VARIABLE, "PCI_BUS_ID")):
        if name in environ:
            undo.callback(environ.__setitem__, name, environ[name])
        else:
            undo.callback(environ.pop, name, None)
        environ[name] = value
    return undo


def _require_first(device: Device) -> None:
    try:
        seen = device.cuda.uuids()
    except CudaError as error:
        raise DeviceError(
            f"CUDA was initialised before {device} could be selected, and fails: {error}"
        ) from error
    if seen and seen[0] == bare_uuid(device.uuid):
        return
    first = f"its device 0 is the one with the UUID {seen[0]}" if seen else "it shows no device"
    raise DeviceError(
        f"CUDA was initialised in this process before {device} could be selected, and {first}. "
        f"Start with {VARIABLE}={device.uuid}, or create no CUDA context at import time or in a conftest.py."
    )
