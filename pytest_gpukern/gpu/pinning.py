"""Making one device the only one that CUDA shows this process and its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.libcuda import CudaError, LibCuda, bare_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    from pytest_gpukern.gpu.libcuda import CudaDriver
    from pytest_gpukern.gpu.model import Device

_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
_CUDA_LIBRARIES = (
    "numba.cuda",
    "cupy",
    "pycuda.driver",
    "torch",
    "jax",
    "tensorflow",
    "cuda.core",
    "cuda.bindings",
)


@dataclass(frozen=True)
class Pin:
    """What `pin` changed in an environment; restoring puts the variables back as they were.

    Restoring does not change what a CUDA that is initialised already shows this process.
    """

    environ: MutableMapping[str, str]
    before: tuple[tuple[str, str | None], ...]

    def restore(self) -> None:
        """Put the variables back."""
        for name, value in self.before:
            if value is None:
                self.environ.pop(name, None)
            else:
                self.environ[name] = value

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()


def pin(
    device: Device,
    environ: MutableMapping[str, str],
    modules: Iterable[str] = (),
    *,
    cuda: CudaDriver | None = None,
) -> Pin:
    """Make `device` CUDA's ordinal 0, and its only one, for this process and those it starts.

    Sets CUDA_VISIBLE_DEVICES to the UUID (which also a MIG instance has, and which no order of devices can
    change) and CUDA_DEVICE_ORDER=PCI_BUS_ID. The simulator needs no pin: nothing changes. `environ` is
    os.environ in a real run, for CUDA reads the process's own; `modules` are the names of imported modules
    (sys.modules), only used to say who initialised CUDA too early.

    Raises DeviceError when CUDA is initialised in this process already and its ordinal 0 is another device.
    """
    if device.is_simulated:
        return Pin(environ, ())
    driver: CudaDriver = LibCuda() if cuda is None else cuda
    if driver.is_initialized():
        _require_first(device, driver, modules)
    before = tuple((name, environ.get(name)) for name in (_VISIBLE, _ORDER))
    environ[_VISIBLE] = device.uuid
    environ[_ORDER] = "PCI_BUS_ID"
    return Pin(environ, before)


def _require_first(device: Device, driver: CudaDriver, modules: Iterable[str]) -> None:
    try:
        seen = driver.devices()
    except CudaError as error:
        raise DeviceError(
            f"CUDA was initialised before {device} could be selected, and fails: {error}"
        ) from error
    if seen and seen[0].uuid == bare_uuid(device.uuid):
        return
    imported = set(modules)
    suspects = [name for name in _CUDA_LIBRARIES if name in imported]
    blame = f" (imported so far: {', '.join(suspects)})" if suspects else ""
    first = f"its device 0 is the one with the UUID {seen[0].uuid}" if seen else "it shows no device"
    raise DeviceError(
        f"CUDA was initialised in this process before {device} could be selected{blame}, and {first}. "
        f"Start with {_VISIBLE}={device.uuid}, or create no CUDA context at import time or in a conftest.py."
    )
