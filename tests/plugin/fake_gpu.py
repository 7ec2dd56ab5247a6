"""A GPU that is not there: NumPy computes, and a launch takes the nanoseconds that it says it takes.

`install` serves runs in this process; runs in another load this module with `-p fake_gpu`. By default CUPTI
is not there, so that events time everything.

What is launched may carry `takes_ns`, `escapes`: why its numbers cannot be trusted, and `kernel`: what it was
compiled to, as JSON.
"""

import importlib
import itertools
import json
import os
import weakref
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

NAME = "Fake GPU"
MODEL_KEY = "fake-gpu"
ALIVE = weakref.WeakSet()
"""Arrays on the fake device."""
CODE = {}
"""Kernel → hash of its machine code, as last launched."""
OBSERVED = []
"""What is observed: `begin` and `loading` modules, or `launches`, too."""
FAULTS = []
"""What has made this process's context unusable, by CUDA's name of the error; for good."""
CHANGES = []
"""How this process's context is another than the one that it began with; for good."""
OWN_CONTEXT = []
"""Whether the test is in a CUDA context of its own."""
CONTEXTS = [0]
"""What a test has made current, innermost last."""
LAUNCHING = []
"""Threads that launch something all the time, by their names."""
NO_CUPTI = "cupti-python is not installed"


@contextmanager
def observed(observation):
    assert not OBSERVED, "CUPTI has one subscriber"
    names = {"loading": lambda begins: "begin" if begins else "loading", "launches": lambda: "launches"}
    OBSERVED.append(observation(SimpleNamespace(**names)))
    try:
        yield
    finally:
        OBSERVED.clear()


class Array:
    """An array on the fake device: its memory is in use while something refers to it."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        ALIVE.add(self)


class Account:
    """What the only library of the fake device says of its memory."""

    def live_bytes(self):
        return sum(each.nbytes for each in ALIVE)

    def peak_bytes(self):
        return 0

    def reset_peak(self):
        pass

    release = reset_peak


INSTALLED = pytest.MonkeyPatch()


def pytest_addoption():
    """The first hook that pytest calls: before any plugin looks for a GPU."""
    install(INSTALLED)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config):
    """Leaves the process of a test as it was, if the run is in that one; before our plugin may refuse it."""
    early_config.add_cleanup(INSTALLED.undo)
    return (yield)


def pytest_runtest_logstart(nodeid):
    """Notes which test begins, where `fake_sanitizer` wants to know."""
    notes = os.environ.get("FAKE_GPU_NOTES")
    if notes is not None:
        with Path(notes).open("a") as file:
            print(nodeid, file=file)


def in_session(config):
    """Whether a run's session runs here, which confirms or records and does not judge."""
    from pytest_gpukern.session.stash import CHILD

    child = config.stash.get(CHILD, None)
    return child is not None and not child.judges


class Board:
    """Answers as NVML does of a device that nothing disturbs."""

    def state(self):
        from pytest_gpukern.gpu.nvml import DeviceState

        return DeviceState(at_ns=0)

    def setup(self):
        from pytest_gpukern.gpu.nvml import Configuration, PowerLimits

        return Configuration(remapped_rows=0), {"generation": 5, "width": 16}, PowerLimits(700.0)


def _not_selected(environment, name):
    """Says that every backend works here, of those that the run selects."""
    chosen = environment.settings.backends
    return f"not selected: --gpukern-backend={','.join(chosen)}" if chosen and name not in chosen else None


def install(monkeypatch, *, cupti=False, board=None):
    """Makes this process believe in one GPU, whose backends compute with NumPy; with or without CUPTI.

    NVML is there only where there is a `board`.
    """
    from pytest_gpukern.backends import backend as backends
    from pytest_gpukern.backends.host import HostBackend
    from pytest_gpukern.gpu.libcuda import bare_uuid
    from pytest_gpukern.gpu.model import Device
    from pytest_gpukern.measure import device_memory
    from pytest_gpukern.measure.observers import Instruments
    from pytest_gpukern.run.device_session import DeviceSession
    from pytest_gpukern.timers.timer import Batch, TimerUnavailable

    class FakeBackend(HostBackend):
        on_gpu = True

        def __init__(self, name):
            self.name = name

    class FakeTimer:
        name = "event"
        measures = "what the launch says it takes"
        queues = True
        jitter_ns = 0.0
        resolution_ns = 0.0
        fixed_cost_ns = None

        @classmethod
        def on_stream(cls, stream, *, any_stream, queues):
            return cls()

        def __init__(self):
            self.steps = itertools.cycle([0, -1, 1, -2, 2])
            self.tails = itertools.cycle([1.0] * 9 + [float(os.environ.get("TENTH_TAKES", "1"))])

        def collect(self, iterations, *, cold):
            for iteration in iterations:
                if iteration.before is not None:
                    iteration.before()
                iteration.run()
            takes_ns = said_by(iterations[0].run, "takes_ns", 1000.0)
            steps = itertools.islice(self.steps, len(iterations))
            samples = [takes_ns * (1 + step / 5000) * next(self.tails) for step in steps]
            work, order = work_of(iterations[0].run, takes_ns)
            return Batch(samples, work=work, order=order)

        def suspicion(self, iteration):
            return said_by(iteration.run, "escapes", None)

    class FakeCuptiTimer(FakeTimer):
        name = "cupti"

        def __init__(self):
            super().__init__()
            if not cupti:
                raise TimerUnavailable(NO_CUPTI)

    listed = tuple(map(bare_uuid, visible()))
    cuda = SimpleNamespace(is_initialized=lambda: True, uuids=lambda: listed)
    properties = SimpleNamespace(multiprocessor_count=4, l2_cache_size=2**20)
    monkeypatch.setattr("pytest_gpukern.gpu.model.cuda_properties", lambda: properties)
    cards = tuple(
        Device(
            index=index,
            name="Old GPU" if uuid.startswith("GPU-old") else NAME,
            uuid=uuid,
            compute_capability=(9, 0),
            memory_total_bytes=2**34,
            cuda=cuda,
        )
        for index, uuid in enumerate(visible())
    )
    runtime = SimpleNamespace(
        synchronize=lambda: None,
        flush_l2=lambda stream: None,
        free_bytes=lambda: 2**33,
        device=SimpleNamespace(default_stream=None),
    )
    importlib.import_module("pytest_gpukern.backends.skcuda")  # as the plugin does, with the real runtime
    for user in ("gpu.selection", "run.device_session"):
        monkeypatch.setattr(f"pytest_gpukern.{user}.missing_gpu_reason", lambda environ: None)
    monkeypatch.setattr(DeviceSession, "device", cards[0] if cards else property(gone))
    monkeypatch.setattr(DeviceSession, "_visible", cards, raising=False)
    monkeypatch.setattr(DeviceSession, "missing_gpu", None)
    monkeypatch.setattr(DeviceSession, "_lock", None)
    if board is not None:
        monkeypatch.setattr(DeviceSession, "instruments", Instruments(board))
    monkeypatch.setattr(device_memory, "accounts", lambda: [Account()])
    monkeypatch.setattr(device_memory, "checked", lambda call: None)
    monkeypatch.setattr("pytest_gpukern.measure.host_load.read", lambda: None)  # what this host does else
    monkeypatch.setattr(DeviceSession, "ceilings", None)
    monkeypatch.setattr(DeviceSession, "launching_threads", lambda self: LAUNCHING[0] if LAUNCHING else "")
    monkeypatch.setattr(DeviceSession, "canaries", property(lambda self: canaries()))
    monkeypatch.setattr("pytest_gpukern.run.environment.Environment._why_unusable", _not_selected)
    monkeypatch.setattr("pytest_gpukern.sanitizer.child_setup.prepare_libraries", lambda: None)
    monkeypatch.setattr(
        backends,
        "open_backend",
        lambda name, *, simulated: HostBackend() if name == "host" else FakeBackend(name),
    )
    replace_in(
        "gpu.runtime",
        monkeypatch,
        runtime=lambda: runtime,
        in_own_context=lambda: OWN_CONTEXT,
        at_home=nullcontext,
        context_fault=lambda: FAULTS[0] if FAULTS else None,
        context_change=context_change,
        current_context=lambda: CONTEXTS[-1],
    )
    code = SimpleNamespace(
        sha256=lambda name, registers: CODE.get(name),
        scalars=lambda kernels, arrays: CODE.get("scalars"),
        refused=None,
    )
    replace_in("timers.cupti.machine_code", monkeypatch, machine_code=lambda: code, observed=observed)
    replace_in("timers.event", monkeypatch, EventTimer=FakeTimer)
    replace_in(
        "timers.cupti.timer",
        monkeypatch,
        CuptiTimer=FakeCuptiTimer,
        trace_of=trace_of if cupti else no_trace,
    )


def context_change(*, another_may_stay):
    another = CONTEXTS[-1] and not another_may_stay
    return CHANGES[0] if CHANGES else "it left another context current" if another else None


def work_of(call, takes_ns):
    """The kernel that a launch says it is: `{"registers": 32, "grid": [1, 1, 1], "code": "beef"}`.

    Each call launches it once, unless an `order` says otherwise: `[0, 0]` twice, `[]` not as often each time.
    Hashes of its machine code and `scalars` go where `machine_code` is asked for them.
    """
    from pytest_gpukern.values.result import DeviceWork, KernelFacts

    said = json.loads(said_by(call, "kernel", None) or "null")
    if said is None:
        return (), ()
    grid = tuple(said.get("grid", (1, 1, 1)))
    kernel = KernelFacts(
        "saxpy", said["registers"], said.get("local", 0), 0, grid=grid, block=(256, 1, 1), symbol="saxpy"
    )
    CODE["saxpy"], CODE["scalars"] = said["code"], said.get("scalars")
    return (DeviceWork("kernel", "saxpy", 1.0, takes_ns, kernel=kernel),), tuple(said.get("order", [0]))


def trace_of(scope, iteration, stream, *, cold):
    from pytest_gpukern.values.result import DeviceActivity, Trace

    if iteration.before is not None:
        iteration.before()
    iteration.run()
    kernel = DeviceActivity("kernel", "saxpy", 0, 1000, 0, 1, 7, grid=(4, 1, 1), block=(256, 1, 1))
    return Trace(scope, (kernel,))


def no_trace(scope, iteration, stream, *, cold):
    from pytest_gpukern.timers.timer import TimerUnavailable

    raise TimerUnavailable(NO_CUPTI)


def visible():
    """UUIDs of what CUDA_VISIBLE_DEVICES leaves of the machine's GPUs: `FAKE_GPUS=GPU-a,GPU-b`, else one.

    A GPU is gone once there is a file of its name in the working folder.
    """
    there = os.environ.get("FAKE_GPUS", "GPU-fa4e").split(",")
    there = [uuid for uuid in there if not Path(uuid).exists()]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")  # empty in all these tests
    return [uuid for uuid in chosen.split(",") if uuid in there] if chosen else there


def gone(session):
    """Fails as the real device does if CUDA_VISIBLE_DEVICES names a GPU that NVML no longer lists."""
    from pytest_gpukern.gpu.errors import DeviceError

    raise DeviceError(f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} starts no GPU's UUID.")


def lock_state(path):
    """Whether processes hold a lock file together (`busy`), one does (`alone`), or none (`free`)."""
    import fcntl

    with path.open("a") as file:
        for how, otherwise in ((fcntl.LOCK_SH, "alone"), (fcntl.LOCK_EX, "busy")):
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return otherwise
    return "free"


def canaries():
    """What the environment says that they take: `CANARIES='{"copy": 1000}'`."""
    return json.loads(os.environ.get("CANARIES", "{}"))


def said_by(call, attribute, default):
    """What a launch, or the function inside a partial or a wrapper, says about itself."""
    inside = getattr(call, "func", getattr(call, "__wrapped__", None))
    return getattr(call, attribute, getattr(inside, attribute, default))


def replace_in(module, monkeypatch, **stand_ins):
    """Puts stand-ins into a module of ours that needs CUDA."""
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"pytest_gpukern.{module}.{name}", stand_in)
