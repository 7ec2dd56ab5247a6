"""Whether the samples of a batch may be believed: decisions on what was seen around it, without hardware.

`batch_fault` judges two states of the device, `Recovery` pauses and gives up, `below_floor` compares with
what the hardware can do, `ClockGuard` and `thread_fault` look for a host that was tampered with.
"""

from .clocks import ClockGuard, ClockReading, device_time_fault
from .disturbance import LOWEST_CLOCK_SHARE, Disturbance, batch_fault, device_notes
from .energy import NO_COUNTER, Energy, energy_per_call
from .floor import below_floor
from .growth import GRANULE_BYTES, Leak, MemoryReading, kept_bytes, kept_words, launch_leak, mib
from .recovery import PausePolicy, Recovery
from .threads import Threads, running_threads, thread_fault, thread_left_working, thread_note

__all__ = [
    "GRANULE_BYTES",
    "LOWEST_CLOCK_SHARE",
    "NO_COUNTER",
    "ClockGuard",
    "ClockReading",
    "Disturbance",
    "Energy",
    "Leak",
    "MemoryReading",
    "PausePolicy",
    "Recovery",
    "Threads",
    "batch_fault",
    "below_floor",
    "device_notes",
    "device_time_fault",
    "energy_per_call",
    "kept_bytes",
    "kept_words",
    "launch_leak",
    "mib",
    "running_threads",
    "thread_fault",
    "thread_left_working",
    "thread_note",
]
