"""The device a run measures on: finding, choosing, pinning, describing and locking it.

Loading this package loads the standard library alone; NVML, CUDA, NumPy and threadpoolctl are loaded by the
functions that ask them. Nothing here creates a CUDA context.
"""

from .errors import DeviceError, DeviceLockTimeout, NvmlUnavailable
from .fingerprint import Fingerprint, header_lines, model_key_of, take_fingerprint
from .live import DeviceState, DeviceWatch
from .lock import DeviceLock
from .lock_file import Holder
from .model import Device, DeviceValues, FixedValues
from .nvml import (
    CLOCK_EVENTS,
    Configuration,
    GpuProcess,
    GpuRecord,
    MigRecord,
    Nvml,
    PowerLimits,
    Utilization,
)
from .peers import peer_access_warnings
from .pinning import Pin, pin
from .process_tree import ancestors
from .processes import FAMILY, foreign_process_warning, foreign_processes, remaining
from .pynvml_adapter import open_nvml
from .selection import select
from .theory import Floor, Peaks, peaks_of
from .visibility import cuda_order_in_child, missing_gpu_reason, visible_devices

__all__ = [
    "CLOCK_EVENTS",
    "FAMILY",
    "Configuration",
    "Device",
    "DeviceError",
    "DeviceLock",
    "DeviceLockTimeout",
    "DeviceState",
    "DeviceValues",
    "DeviceWatch",
    "Fingerprint",
    "FixedValues",
    "Floor",
    "GpuProcess",
    "GpuRecord",
    "Holder",
    "MigRecord",
    "Nvml",
    "NvmlUnavailable",
    "Peaks",
    "Pin",
    "PowerLimits",
    "Utilization",
    "ancestors",
    "cuda_order_in_child",
    "foreign_process_warning",
    "foreign_processes",
    "header_lines",
    "missing_gpu_reason",
    "model_key_of",
    "open_nvml",
    "peaks_of",
    "peer_access_warnings",
    "pin",
    "remaining",
    "select",
    "take_fingerprint",
    "visible_devices",
]
