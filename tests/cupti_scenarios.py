"""Small scenarios of work on a GPU, each with the way in which the package has CUPTI record it.

A scenario has two halves. One makes calls on a device, loaded and run once. The other is given the runtime
and these calls, and has the package record them. It also runs where a recording is replayed, with calls that
do nothing. `record_cupti.py` writes down what CUPTI says to the package meanwhile.
"""

from __future__ import annotations

import functools
import threading
import time
from contextlib import ExitStack

import numpy as np

from pytest_gpukern.timers.cupti import timer as cupti_timer
from pytest_gpukern.timers.cupti.activity import OURS, activity_trace
from pytest_gpukern.timers.cupti.machine_code import machine_code, observed
from pytest_gpukern.timers.cupti.timer import CuptiTimer
from pytest_gpukern.timers.timer import Iteration

COUNT = 5
"""Executions of a batch."""
REGISTERS = 16
"""What a launch's record says of each kernel here whose code is asked for: fewer are recorded as 16."""
SPIN = r"""
__device__ void wait(unsigned long long ns, unsigned long long *spun) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
  *spun = now - start;
}
extern "C" __global__ void spin(unsigned long long ns, unsigned long long *spun) { wait(ns, spun); }
extern "C" __global__ void spin_again(unsigned long long ns, unsigned long long *spun) { wait(ns, spun); }
__global__ void add_one(float *out) { out[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }
extern "C" __global__ void shaped(float *out) {
  __shared__ float tile[256];
  extern __shared__ float more[];
  int i = threadIdx.y * blockDim.x + threadIdx.x;
  tile[i] = more[i] = i;
  __syncthreads();
  if (blockIdx.x == 0) out[i] = tile[255 - i] + more[i ^ 1];
}
"""
SMALL = """
// copy {copy}
extern "C" __global__ void {name}(float *out) {{ out[threadIdx.x] = {value}.0f; }}
"""
NAMES = ("one", "two", "three")
"""Kernels whose code is asked for."""


class Gpu:
    """Makes calls on the device of this process.

    Attributes:
        closing: what is undone at the end of the scenario.
        threads: CUPTI's id of each thread that lives until then → its name.
    """

    def __init__(self):
        from pytest_gpukern.gpu.runtime import runtime

        self.runtime = runtime()
        self.stream = self.runtime.stream
        self.closing = ExitStack()
        self.threads = {}
        self._spun = self.array(1, np.uint64)
        self.other_stream = self.runtime.device.create_stream

    @property
    def few_blocks(self):
        """The largest grid that is recorded concurrently."""
        return 4 * self.runtime.multiprocessors

    def array(self, count, dtype=np.float32):
        from pytest_gpukern.gpu.runtime import DeviceArray

        made = DeviceArray((count,), dtype)
        made.fill(0)
        self.runtime.synchronize()
        return made

    def _launches(self, source, name, grid, block, *arguments, stream=None, shared=0):
        from cuda.core import LaunchConfig, launch

        kernel = self.runtime.kernel(source, name)
        config = LaunchConfig(grid=grid, block=block, shmem_size=shared)
        return lambda: launch(stream or self.stream, config, kernel, *arguments)

    def _ran(self, call):
        call()
        self.runtime.synchronize()
        return call

    def spin(self, ns, *, stream=None, name="spin"):
        """One thread waits so long."""
        return self._ran(self._launches(SPIN, name, 1, 1, np.uint64(ns), self._spun.pointer, stream=stream))

    def blocks(self, count, *, stream=None):
        """A kernel of C++ with so many short blocks."""
        out = self.array(256 * count)
        return self._ran(self._launches(SPIN, "_Z7add_onePf", count, 256, out.pointer, stream=stream))

    def shaped(self):
        out = self.array(256)
        return self._ran(self._launches(SPIN, "shaped", (3, 2, 1), (64, 4, 1), out.pointer, shared=2048))

    def small(self, name, value=1, copy=1):
        """A kernel of a module of its own, loaded in the first launch.

        The same name with another value is other code, and with another copy the code once more.
        """
        out, source = self.array(32), SMALL.format(name=name, value=value, copy=copy)
        return lambda: self._launches(source, name, 1, 32, out.pointer)()

    def sync(self):
        """Waits for the device."""
        self.runtime.synchronize()

    def upload(self, count):
        """Copies from pageable memory."""
        array, host = self.array(count), np.ones(count, np.float32)
        return self._ran(lambda: array.upload(host))

    def download(self, count):
        return self._ran(self.array(count).download)

    def pinned(self, count):
        """Copies from page-locked memory and back."""
        from pytest_gpukern.gpu.runtime import checked

        array, handle = self.array(count), int(self.stream.handle)
        host = int(checked("cuMemHostAlloc", array.nbytes, 0))

        def call():
            checked("cuMemcpyHtoDAsync", array.pointer, host, array.nbytes, handle)
            checked("cuMemcpyDtoHAsync", host, array.pointer, array.nbytes, handle)

        return self._ran(call)

    def copy(self, count):
        """Copies on the device."""
        source, target = self.array(count), self.array(count)
        return self._ran(lambda: target.copy_from(source, self.stream))

    def memset(self, count):
        array = self.array(count)
        return self._ran(lambda: array.fill(7, self.stream))

    def forked(self, *, forks=True, joins=True, ns=100_000):
        """A call on a stream of its own beside the timed one, which may wait for it, and that for this."""
        own = self.other_stream()
        there, here = self.spin(ns, stream=own, name="spin_again"), self.spin(10_000)

        def call():
            if forks:
                own.wait(self.stream.record())
            there()
            here()
            if joins:
                self.stream.wait(own.record())

        return call

    def in_thread(self, call):
        """A thread of its own makes the call, and is waited for."""

        def launches():
            self._enter()
            call()

        def run():
            thread = threading.Thread(target=launches, name="backward")
            thread.start()
            thread.join()

        return self._ran(run)

    def heart(self, call):
        """Has a thread make the call every half a millisecond until the scenario ends."""
        stopped = threading.Event()

        def beats():
            self._enter()
            while not stopped.wait(0.0005):
                call()

        thread = threading.Thread(target=beats, name="heartbeat")
        thread.start()
        self.threads[str(thread.ident & 0xFFFFFFFF)] = thread.name
        self.closing.callback(thread.join)
        self.closing.callback(stopped.set)

    def _enter(self):
        from cuda.core import Device

        Device(0).set_current()

    def cublas(self):
        """A library that links the runtime API statically."""
        from pytest_gpukern.backends.backend import open_backend

        self.closing.enter_context(open_backend("cupy", simulated=False).current())
        import cupy

        x = cupy.ones((512, 512), cupy.float32)
        out = cupy.empty_like(x)
        return self._ran(lambda: cupy.matmul(x, x, out=out))


# how the package has it recorded


def timed(*, cold=False, any_stream=False, before=False, batches=1):
    """A batch of executions by the CUPTI timer, or several, and what it thinks of them."""

    def drive(runtime, call, *earlier):
        timer = CuptiTimer(runtime, any_stream=any_stream)
        iteration = Iteration(call, *(earlier if before else ()))
        taken = [timer.collect([iteration] * COUNT, cold=cold) for _ in range(batches)]
        return {
            "batches": taken,
            "measures": timer.measures,
            "queues": timer.queues,
            "suspicion": timer.suspicion(iteration),
        }

    return drive


def recorded(*, concurrently=True, follow=False, full=False):
    """A recording of these calls, each with an id of its own."""

    def drive(runtime, *calls):
        trace = activity_trace()
        if follow:
            trace.follow_threads()
        trace.open(concurrently=concurrently)
        try:
            for number, call in enumerate(calls, start=OURS + 1):
                trace.push(number)
                call()
                trace.pop()
            runtime.synchronize()
        finally:
            activities = trace.close_in_full() if full else trace.close()
        return activities

    return drive


def alternating(runtime, many, few):
    """One timer gets a call of many blocks, then one of few, in turns."""
    timer = CuptiTimer(runtime)
    taken = [timer.collect([Iteration(call)], cold=False) for call in (many, few, many, few)]
    return {"batches": taken, "measures": timer.measures}


def in_trace(runtime, call, before):
    return cupti_timer.trace_of("kernel", Iteration(call, before), runtime.stream, cold=True)


def launching(runtime):
    CuptiTimer(runtime)
    return cupti_timer.launching_threads(0.005)


def observing(*phases):
    """Each call under an observation of its own: `begin`, `loading`, `launches`, or none.

    Returns the hashes that are known after each, of a few names.
    """

    def drive(runtime, *calls):
        known = []
        for phase, call in zip(phases, calls, strict=True):
            if phase:
                with observed(functools.partial(_observation, phase)):
                    call()
                    runtime.synchronize()
            else:
                call()
                runtime.synchronize()
            code = machine_code()
            known.append({name: code.sha256(name, REGISTERS) for name in NAMES} if code else None)
        return {"known": known, "refused": code.refused if code else None}

    return drive


def _observation(phase, code):
    return code.launches() if phase == "launches" else code.loading(begins=phase == "begin")


def _of(*calls):
    """A call that does nothing but these."""
    return lambda: [call() for call in calls]


def _pieces(gpu):
    return (
        *(gpu.upload(1 << 16), gpu.spin(20_000), gpu.shaped(), gpu.memset(1 << 16), gpu.download(1 << 16)),
        *(gpu.pinned(1 << 16), gpu.copy(1 << 16)),
    )


def _aside(gpu, ns):
    return gpu.spin(ns, stream=gpu.other_stream(), name="spin_again")


def _beating(gpu, *calls):
    """The calls, while a heart beats on a stream of its own."""
    gpu.heart(_aside(gpu, 5000))
    return calls


def _in_turn(gpu):
    """Launches two versions of a kernel, each again, and then both."""
    versions = gpu.small("one"), gpu.small("one", value=2)
    return *versions, *versions, _of(*versions)


def _at_once(gpu, **changed):
    """Loads two versions of a kernel, and launches one."""
    one = gpu.small("one")
    return _of(one, gpu.small("one", **changed)), one


COLD, ANY_STREAM = timed(cold=True), timed(any_stream=True)
SMALL_BUFFERS = "small buffers"
"""CUPTI gets buffers of 16 KiB there, and of the package's size elsewhere."""
SCENARIOS = {
    "a kernel, recorded": (recorded(), lambda gpu: gpu.shaped()),
    "a kernel, recorded serially": (recorded(concurrently=False), lambda gpu: gpu.shaped()),
    "all kinds": (recorded(), _pieces),
    "all kinds, in full": (recorded(full=True), _pieces),
    "two streams": (recorded(), lambda gpu: (gpu.spin(200_000), _aside(gpu, 10_000), gpu.copy(64))),
    SMALL_BUFFERS: (recorded(), lambda gpu: [_of(gpu.spin(1000), gpu.memset(64))] * 40),
    "a thread, followed": (
        recorded(follow=True),
        lambda gpu: (gpu.in_thread(gpu.spin(5000)), gpu.spin(5000)),
    ),
    "a kernel": (timed(), lambda gpu: gpu.spin(20_000)),
    "two kernels": (COLD, lambda gpu: _of(gpu.spin(10_000), gpu.spin(30_000, name="spin_again"))),
    "copy, kernel, memset": (
        timed(),
        lambda gpu: _of(gpu.copy(1 << 18), gpu.spin(10_000), gpu.memset(1 << 18)),
    ),
    "two grids of a kernel": (timed(), lambda gpu: _of(gpu.blocks(8), gpu.blocks(8), gpu.blocks(32))),
    "cublas": (COLD, lambda gpu: gpu.cublas()),
    "behind others": (timed(cold=True, before=True), lambda gpu: (gpu.spin(20_000), gpu.spin(40_000))),
    "nothing": (timed(), lambda gpu: lambda: None),
    "few blocks": (timed(), lambda gpu: gpu.blocks(gpu.few_blocks)),
    "many blocks": (timed(), lambda gpu: gpu.blocks(gpu.few_blocks + 1)),
    "many blocks aside": (timed(), lambda gpu: gpu.blocks(64 * gpu.few_blocks, stream=gpu.other_stream())),
    "now many blocks, now few": (alternating, lambda gpu: (gpu.blocks(gpu.few_blocks + 1), gpu.blocks(8))),
    "alone aside": (timed(), lambda gpu: _aside(gpu, 5000)),
    "alone aside, any stream": (ANY_STREAM, lambda gpu: _aside(gpu, 5000)),
    "two streams, any stream": (ANY_STREAM, lambda gpu: _of(_aside(gpu, 200_000), gpu.spin(20_000))),
    "forks and joins": (COLD, lambda gpu: gpu.forked()),
    "does not join": (COLD, lambda gpu: gpu.forked(joins=False)),
    "does not join, briefly": (COLD, lambda gpu: gpu.forked(joins=False, ns=20_000)),
    "does not fork": (timed(cold=True, batches=2), lambda gpu: gpu.forked(forks=False)),
    "waits between kernels": (COLD, lambda gpu: _of(gpu.spin(10_000), gpu.sync, gpu.spin(10_000))),
    "waits for its kernel": (COLD, lambda gpu: _of(gpu.spin(10_000), gpu.sync)),
    "pageable copies": (
        ANY_STREAM,
        lambda gpu: _of(gpu.upload(1 << 18), gpu.spin(10_000), gpu.sync, gpu.download(1 << 18)),
    ),
    "a thread of the call": (COLD, lambda gpu: _of(gpu.spin(10_000), gpu.in_thread(gpu.spin(20_000)))),
    "a heart beats": (COLD, lambda gpu: _beating(gpu, gpu.spin(300_000))),
    "only a heart beats": (timed(), lambda gpu: _beating(gpu, lambda: time.sleep(0.002))),
    "a heart is named": (launching, lambda gpu: _beating(gpu)),
    "nobody launches": (launching, lambda gpu: ()),
    "a trace, cold": (in_trace, lambda gpu: (gpu.spin(5000), gpu.spin(40_000))),
    "modules": (observing("begin", "loading", None), lambda gpu: tuple(map(gpu.small, NAMES))),
    "versions in turn": (observing(*["launches"] * 5), _in_turn),
    "versions at once": (observing("begin", "launches"), lambda gpu: _at_once(gpu, value=2)),
    "a module twice": (observing("begin", "launches"), lambda gpu: _at_once(gpu, copy=2)),
}
"""Name → how the package has it recorded, and what makes the calls, or the one call, on a `Gpu`.

Each needs a process in which nothing was recorded before.
"""
