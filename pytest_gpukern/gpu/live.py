"""The state of a device at one moment: what samples taken around it are judged by."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.process_tree import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.gpu.nvml import DeviceState, GpuProcess, Nvml


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
