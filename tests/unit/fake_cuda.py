"""A CUDA device that only writes down what it is given: stream, events, blocking kernel, stream capture."""

# ruff: noqa: N802 - named as in CUDA
from __future__ import annotations

import enum
import sys
from types import ModuleType, SimpleNamespace

from pytest_gpukern.timers.launch_queue import TIMEOUT_NS

MS = 1_000_000


class FakeEvent:
    """Reads the device's time when it was recorded."""

    def __init__(self, device):
        self.device = device
        self.at_ms = None

    def __sub__(self, other):
        return self.at_ms - other.at_ms

    def sync(self):
        self.device.log.append("event reached")


class FakeDevice:
    """Runtime, device, stream and blocking kernel in one.

    Attributes:
        log: every step.
        now_ms: the device's clock; what is launched runs at once.
        host_ns: the host's clock.
        room: launches that fit behind the blocking kernel; one more waits until that gives up.
        capture: the graph being captured, or None.
    """

    l2_bytes = 1 << 20

    def __init__(self, room=10**9, handle=7):
        self.log = []
        self.now_ms = 0.0
        self.host_ns = 0
        self.stream = self.device = self.default_stream = self
        self.handle = handle
        self.room = room
        self.timed_out = self.blocked = False
        self.queued = 0
        self.streams = set()
        self.capture = None

    # runtime

    def reset_persisting_l2(self):
        self.log.append("reset L2")

    def flush_l2(self, stream):
        self.streams.add(id(stream))
        self.log.append("flush")

    def synchronize(self):
        self.log.append("idle")

    def kernel(self, source, name):
        assert f"void {name}(" in source
        return name

    # device

    def create_event(self, options=None):
        return FakeEvent(self)

    # stream

    def record(self, event):
        event.at_ms = self.now_ms
        self.log.append("record")

    # blocking kernel

    def block(self, stream):
        self.streams.add(id(stream))
        self.queued, self.blocked, self.timed_out = 0, True, False
        self.log.append("block")

    def release(self):
        self.blocked = False
        self.log.append("release")

    # what calls do

    def execute(self, duration_ms, step="call"):
        """Work on the timed stream, which is captured, executed, or waits for room in the launch queue."""
        if self.capture is not None:
            self.capture.add(Kind.KERNEL, duration_ms)
            return
        self.log.append(step)
        self.queued += 1
        self.now_ms += duration_ms
        if self.blocked and self.queued > self.room:
            self.wait()

    def wait(self):
        """Waits for the device: until the blocking kernel gives up, or not at all in a capture."""
        if self.capture is not None:
            self.capture.valid = False
            raise RuntimeError("cuCtxSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\nand more")
        if self.blocked:
            self.host_ns += TIMEOUT_NS
            self.timed_out = True

    def call(self, duration_ms=0.002):
        """A call that takes `duration_ms` of the device's time; counts in `.count`."""

        def call():
            self.execute(duration_ms)
            call.count += 1

        call.count = 0
        return call

    def waiting_call(self, duration_ms=0.002):
        """As `call`, and waits for the device."""
        launch = self.call(duration_ms)

        def call():
            launch()
            self.wait()

        return call


class Kind(enum.Enum):
    KERNEL = enum.auto()
    MEMSET = enum.auto()
    MEM_ALLOC = enum.auto()


class FakeGraph:
    """Nodes that were captured, in order: their kinds and durations."""

    def __init__(self):
        self.nodes = []
        self.valid = True

    def add(self, kind, duration_ms):
        self.nodes.append(SimpleNamespace(kind=kind, duration_ms=duration_ms))


Result = enum.Enum("Result", ["CUDA_SUCCESS", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "CUDA_ERROR_UNKNOWN"])
OK = Result.CUDA_SUCCESS


class FakeDriver:
    """The part of `cuda.bindings.driver` that captures and replays graphs.

    Attributes:
        alive: graphs and executables that were not destroyed.
        replay_ms: what a replay costs beside its nodes.
        fails: functions that fail from now on.
    """

    CUresult = Result
    CUstreamCaptureMode = enum.Enum("Mode", ["CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"])
    CUstreamCaptureStatus = enum.Enum(
        "Status", [f"CU_STREAM_CAPTURE_STATUS_{name}" for name in ("NONE", "ACTIVE", "INVALIDATED")]
    )
    CUgraphNodeType = SimpleNamespace(
        CU_GRAPH_NODE_TYPE_KERNEL=Kind.KERNEL, CU_GRAPH_NODE_TYPE_MEM_ALLOC=Kind.MEM_ALLOC
    )

    def __init__(self, device, replay_ms=0.0):
        self.device = device
        self.alive = []
        self.replay_ms = replay_ms
        self.fails = set()

    def __getattribute__(self, name):
        if name.startswith("cu") and name in self.fails:
            return lambda *_: (Result.CUDA_ERROR_UNKNOWN, None)
        return super().__getattribute__(name)

    def cuStreamBeginCapture(self, stream, mode):
        assert stream == self.device.handle
        assert self.device.capture is None
        assert mode is self.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.device.capture = FakeGraph()
        return (OK,)

    def cuStreamGetCaptureInfo(self, stream):
        graph = self.device.capture
        name = "NONE" if graph is None else "ACTIVE" if graph.valid else "INVALIDATED"
        status = self.CUstreamCaptureStatus[f"CU_STREAM_CAPTURE_STATUS_{name}"]
        return OK, status, 1, graph, [], [], 0

    def cuStreamEndCapture(self, stream):
        graph, self.device.capture = self.device.capture, None
        assert graph is not None, "nothing is being captured"
        if not graph.valid:
            return Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None
        self.alive.append(graph)
        return OK, graph

    def cuGraphGetNodes(self, graph, count=0):
        return OK, graph.nodes[:count], min(count, len(graph.nodes)) if count else len(graph.nodes)

    def cuGraphNodeGetType(self, node):
        return OK, node.kind

    def cuGraphInstantiate(self, graph, flags):
        assert graph in self.alive
        executable = SimpleNamespace(graph=graph, uploaded=False)
        self.alive.append(executable)
        return OK, executable

    def cuGraphUpload(self, executable, stream):
        assert not self.device.blocked
        executable.uploaded = True
        return (OK,)

    def cuGraphLaunch(self, executable, stream):
        assert executable in self.alive
        assert executable.uploaded
        duration = self.replay_ms + sum(node.duration_ms for node in executable.graph.nodes)
        self.device.execute(duration, step=f"replay of {len(executable.graph.nodes)}")
        return (OK,)

    def cuGraphExecDestroy(self, executable):
        self.alive.remove(executable)
        return (OK,)

    def cuGraphDestroy(self, graph):
        self.alive.remove(graph)
        return (OK,)


def install(monkeypatch, device):
    """Puts the fake in the place of cuda.core, cuda.bindings, the blocking kernel and the host's clock.

    Returns the driver.
    """
    from pytest_gpukern.timers import launch_queue
    from pytest_gpukern.timers import replay as calibration

    driver = FakeDriver(device)
    core = ModuleType("cuda.core")
    core.EventOptions = lambda timing_enabled: "timing" if timing_enabled else "none"
    core.LaunchConfig = lambda grid, block: (grid, block)
    core.launch = lambda stream, config, kernel: stream.execute(0.001, step=kernel)
    bindings = ModuleType("cuda.bindings")
    bindings.driver = driver
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.core", core), ("cuda.bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(launch_queue, "blocking_kernel", lambda: device)
    monkeypatch.setattr(launch_queue.time, "perf_counter_ns", lambda: device.host_ns)
    for function in (calibration.empty_kernel_line, calibration.event_cost_ns):
        function.cache_clear()
    return driver
