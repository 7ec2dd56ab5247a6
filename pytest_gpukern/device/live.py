"""The state of a device at one moment: what samples taken around it are judged by."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .process_tree import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .model import Device
    from .nvml import GpuProcess, Nvml


@dataclass(frozen=True)
class DeviceState:
    """What NVML told of a device at one moment; None where driver, permission or a MIG instance do not tell.

    Clocks, limiters and temperatures of a MIG instance are those of its GPU, which all instances share; it
    has no power or energy of its own.

    Attributes:
        at_ns: when, by the host's monotonic clock in nanoseconds; means something within one process only.
        sm_clock_mhz: clock of the multiprocessors, in the driver's steps (15 MHz on an H200).
        memory_clock_mhz: clock of the memory.
        clock_events: why the clocks are not higher at this moment, by names of `nvml.CLOCK_EVENTS`.
        limited_ns: name of a clock event → nanoseconds that it has held clocks down since the driver was
            loaded. Unlike `clock_events`, the difference of two states shows what came and went between
            them. Events that the driver does not count are absent.
        temperature_c: temperature of the GPU.
        memory_temperature_c: temperature of the memory.
        power_w: power drawn by the GPU: at this moment where the driver tells, else its average over up to a
            second.
        energy_mj: energy drawn since the driver was loaded, in millijoules; the driver adds to it every 20
            to 100 ms.
        memory_used_bytes: memory in use on the device, by whatever process.
        foreign: processes of others with a CUDA context on the device.
    """

    at_ns: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_events: tuple[str, ...] | None = None
    limited_ns: Mapping[str, int] = field(default_factory=dict)
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power_w: float | None = None
    energy_mj: int | None = None
    memory_used_bytes: int | None = None
    foreign: tuple[GpuProcess, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values that json.dumps takes."""
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        plain["clock_events"] = None if self.clock_events is None else list(self.clock_events)
        plain["limited_ns"] = dict(self.limited_ns)
        plain["foreign"] = [dataclasses.asdict(process) for process in self.foreign]
        return plain


class DeviceWatch:
    """Takes states of one device and tells the processes of others on it from ours.

    A state takes eight calls of NVML (both clocks, limiters, temperature, one call for counters and power,
    memory, processes, utilization) and one more for the name of each process: a millisecond or so, during
    which nothing should be timed. The state after one batch can be the one before the next.

    Make one after this process has its CUDA context: in a container NVML gives process ids of the host, so
    what is there now and was not among the `strangers` found before that is taken to be ours.

    Args:
        nvml: where to ask.
        device: a real device.
        strangers: what `foreign_processes` found before this process had a context.
    """

    def __init__(self, nvml: Nvml, device: Device, strangers: Sequence[GpuProcess] = ()) -> None:
        self._nvml = nvml
        self._uuid = device.uuid
        listed = {process.pid for process in nvml.compute_processes(self._uuid)}
        self._same_namespace = os.getpid() in listed
        self._ours = {os.getpid(), *ancestors()}
        if not self._same_namespace:
            self._ours |= listed - {stranger.pid for stranger in strangers}
        self._seen_us = 0
        self._busy()  # what was sampled up to now says nothing about what is measured from now on

    @property
    def ours(self) -> frozenset[int]:
        """Process ids, as NVML gives them, that are this process or its ancestors."""
        return frozenset(self._ours)

    def state(self) -> DeviceState:
        """Ask NVML now: what changes fastest, first."""
        state = self._nvml.state(self._uuid)
        busy = self._busy()
        foreign = (
            dataclasses.replace(process, sm_percent=busy.get(process.pid))
            for process in self._foreign(self._nvml.compute_processes(self._uuid))
        )
        return dataclasses.replace(state, foreign=tuple(foreign))

    def _foreign(self, processes: Iterable[GpuProcess]) -> list[GpuProcess]:
        return [
            process
            for process in processes
            if process.pid not in self._ours
            and not (self._same_namespace and os.getpid() in ancestors(process.pid))
        ]

    def _busy(self) -> dict[int, int]:
        """Process id → the largest share of time, in percent, sampled since the last call."""
        found: dict[int, int] = {}
        for sample in self._nvml.utilization(self._uuid, self._seen_us):
            self._seen_us = max(self._seen_us, sample.time_us)
            found[sample.pid] = max(found.get(sample.pid, 0), sample.sm_percent)
        return found
