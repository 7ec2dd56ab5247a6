"""Stand-ins shared by the tests of the core: clocks, problems, a GPU that NumPy computes for, a timer."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pytest_gpukern import Axis, Case, Output, Problem, Tolerance
from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.measure.observers import Observers
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.problems.dataset import Datasets
from pytest_gpukern.run import spine
from pytest_gpukern.run.case_subject import CaseSubject
from pytest_gpukern.run.spine import Evidence, SubjectContext, judged_by_record
from pytest_gpukern.timers.timer import Batch, Iteration
from pytest_gpukern.values.fingerprint import NO_PROVENANCE, Fingerprint
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.settings import Settings

TEST_FILE = Path("suites/doubling/test_doubling.py")


class FakeClock:
    """Nanoseconds that pass only when somebody says so; reading costs `tick` of them."""

    def __init__(self, tick=0):
        self.now = 0
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now

    perf_counter_ns = __call__

    def passes(self, ns):
        self.now += ns

    def seconds(self):
        return self.now / 1e9


def call_taking(clock, *durations_ns):
    """A call that takes these times in turn, the last of them for ever; counts in `.calls`."""

    def call():
        clock.now += durations_ns[min(call.calls, len(durations_ns) - 1)]
        call.calls += 1

    call.calls = 0
    return call


def repeated(call, count):
    """Iterations that each run `call`."""
    return [Iteration(call)] * count


def with_fresh_arguments(call, count, setup):
    """Iterations that each run `call` on an argument of their own, made by `setup`."""

    def fresh():
        argument = setup()
        return Iteration(lambda: call(argument), fresh=fresh)

    return [fresh() for _ in range(count)]


def doubling(n=8, **changes):
    """The problem out = 2·a in float32 for `n` elements, exact."""
    declared = {
        "version": 1,
        "axes": {"n": Axis(smoke=(n,), full=(n * 1000,))},
        "make_inputs": lambda rng, n: {"a": rng.random(n).astype(np.float32)},
        "outputs": lambda n: {"out": Output((n,), "float32")},
        "reference": lambda a: 2.0 * a.astype(np.float64),
        "tolerance": Tolerance(),
        "traffic_bytes": lambda n: 8 * n,
        "flops": lambda n: n,
        **changes,
    }
    return Problem("doubling", **declared)


def scaled():
    """out = k·a, where k is a scalar that changes with the data set."""
    return doubling(
        make_inputs=lambda rng, n: {"a": rng.random(n).astype("float32"), "k": int(rng.integers(1, 2**20))},
        reference=lambda a, k: (a * np.float32(k)).astype("float64"),
    )


def only_case(problem, size="smoke", *, wrong=False):
    """The one case of a problem."""
    (case,) = cases_of(problem, size, wrong=wrong)
    assert isinstance(case, Case)
    return case


def case_of(prepare, backend="numba", problem=None, **arguments):
    """The one case of a problem, by default `doubling`, with this variant."""
    problem = problem or doubling()
    problem.variant(backend, **arguments)(prepare)
    return only_case(problem)


def measuring(**changes):
    """Settings of a run that measures, by events unless it says otherwise."""
    return Settings(requested=True, **{"benchmark": True, "timer": "event", **changes})


def run(case, environment, marker=None, *, checked=False):
    """Runs a case as a test would; after a session that has `checked` it, if so."""
    marker = marker or MarkerOptions()
    found = found_of(case, environment, marker, checked=checked)
    threshold = marker.threshold or environment.settings.threshold
    return judged_by_record(found.result, environment, threshold)[0]


def diagnose_case(case, environment):
    """What is wrong with a case, which is checked and not measured, or None."""
    return found_of(case, environment, MarkerOptions(), rejects=True).diagnosis


def found_of(case, environment, marker, *, rejects=False, checked=False):
    """What a case on its way through the spine has found out."""
    context = SubjectContext(environment, marker, "test_doubling.py::test[x]", TEST_FILE, checked)
    subject = CaseSubject(case, context, rejects=rejects)
    found = Evidence(subject.begin())
    spine.run(subject, found, environment)
    return found


def right(a, out):
    """A variant of `doubling`."""
    return lambda: np.multiply(a, 2, out=out)


def noting(events):
    """A right variant that notes its launches."""
    return lambda a, out: lambda: (events.append("launch"), np.multiply(a, 2, out=out))


def wrong_where(is_wrong, then, events=()):
    """A variant that does `then(a, out)` where `is_wrong` says so.

    It is told the set's number and how many launches there were, with this one: on the set, on all, and the
    same two of those since timing began, which are 0 before.
    """
    sets, on_all, timed = itertools.count(), itertools.count(1), itertools.count(1)

    def prepare(a, out):
        number, on_its_set, timed_there = next(sets), itertools.count(1), itertools.count(1)

        def launch():
            of_timed = (next(timed_there), next(timed)) if "timed" in events else (0, 0)
            wrong = is_wrong(number, next(on_its_set), next(on_all), *of_timed)
            then(a, out) if wrong else np.multiply(a, 2, out=out)

        return launch

    return prepare


class FakeGpu(HostBackend):
    """Claims to be a GPU with Numba, computes with NumPy, and writes down what happens in `events`.

    A `fetch` is a timed copy into a host array; what checks fetch to look at is no event. `before` gets the
    name and the arguments of what a workspace is asked for.
    """

    name = "numba"
    on_gpu = True
    stream = "the stream"
    timed_stream = "the stream of cuda.core"

    def __init__(self, events=None):
        self.events = [] if events is None else events
        self.released = 0
        self.workspaces = []
        self.before = lambda name, *args: None

    def workspace(self, inputs, outputs, placed=None):
        made = super().workspace(inputs, outputs, placed)
        self.workspaces.append(made)
        queue = made.queue_poison

        def queue_poison(stream):
            if stream is not None:  # else `poison` asks for it
                assert stream == self.timed_stream
                self.events.append("queue_poison")
            queue(stream)

        made.queue_poison = queue_poison
        for method in ("load", "fill", "fetch", "close", "poison", "adopt"):
            setattr(made, method, self._noting(method, getattr(made, method)))
        return made

    def _noting(self, name, method):
        def noted(*args, **kwargs):
            self.before(name, *args)
            if name != "adopt" and (name != "fetch" or len(args) > 1):
                self.events.append(name)
            return method(*args, **kwargs)

        return noted

    def release(self):
        self.released += 1


class FakeTimer:
    """Executes what it is given and reads 1000, 1001 and 1002 ns in turn, from batch to batch.

    Attributes:
        events: gets `timed` at the beginning of each batch.
        colds: the cache policy of each batch.
        suspicious: what it says is suspicious.
    """

    measures = "what a test says"
    queues = True
    resolution_ns = 0.0
    jitter_ns = 0.0
    fixed_cost_ns = None

    def __init__(self, name="event", suspicion=None, events=None):
        self.name = name
        self.suspicious = suspicion
        self.events = [] if events is None else events
        self.colds = []
        self.readings = itertools.cycle([1000.0, 1001.0, 1002.0])

    def collect(self, iterations, *, cold):
        self.events.append("timed")
        self.colds.append(cold)
        for iteration in iterations:
            if iteration.before is not None:
                iteration.before()
            iteration.run()
        return Batch(list(itertools.islice(self.readings, len(iterations))))

    def suspicion(self, iteration):
        return self.suspicious


class FakeEnvironment:
    """As `environment.Environment` for the runner, with these backends.

    `recorded` has the sessions of every measurement, or of each by its key; as in a baseline, a key that was
    never recorded gets those of the others of its scope.
    """

    def __init__(self, *backends, settings=None, missing=None, simulating=False, recorded=()):
        self.settings = settings or Settings(benchmark=True, requested=True, timer="event")
        self.gpu = self.store = self  # it is all of them
        self.datasets, self.corner_datasets = Datasets(), Datasets(points=100)
        self.simulated = SimpleNamespace(active=simulating)
        self.fingerprint, self.provenance = Fingerprint(device_name="fake"), NO_PROVENANCE
        self.session, self.poisons = "5e551041", POISONS
        self.sessions = recorded
        self.first_sessions = ()
        self.asked_for_records = []
        self.locked, self.observed, self.timed = False, None, []
        self.instruments = self.peaks = self.ceilings = self.device = None
        self.measures, self.observers = False, Observers(self)
        self.newer_epochs = {}
        self.has_gpu = False
        self.canaries = {}
        self.past = lambda case_id, key=None: None
        self.late = []
        self.timing_by_host = nullcontext
        self._backends = {backend.name: backend for backend in backends}
        self._backends.setdefault("host", HostBackend())
        self._missing = missing or {}

    def take_late_warnings(self):
        taken, self.late = tuple(self.late), []
        return taken

    def loading_observed(self, *, begins=False, on_gpu=True):
        return self._observed("loading" if on_gpu else None)

    def launches_observed(self):
        return self._observed("launches")

    @contextmanager
    def _observed(self, what):
        assert self.observed is None, "CUPTI has one subscriber"
        self.observed = what
        try:
            yield
        finally:
            self.observed = None

    def record_of(self, case):
        return self

    def newer_epoch(self, key):
        return self.newer_epochs.get(key)

    def unusable(self, name):
        return self._missing.get(name)

    def backend(self, name):
        return self._backends[name]

    def model_key(self, *, on_gpu):
        return "fake-gpu" if on_gpu else "fake-cpu"

    def sessions_for(self, case, model_key, key):
        if self.settings.baseline == "off":
            return ()
        self.asked_for_records.append((key, model_key == "fake-gpu"))
        if not isinstance(self.sessions, dict):
            return self.sessions
        scope = key.partition("/")[0]
        similar = [each for other, each in self.sessions.items() if other.partition("/")[0] == scope]
        return self.sessions.get(key, sum(similar, ()))

    def anchor(self, key):
        return self.first_sessions

    def shared_spread(self, model_key):
        return {}

    @contextmanager
    def timing(self, *, on_gpu):
        self.timed.append(on_gpu)
        yield
        self.timed.append("over")

    @contextmanager
    def working(self):
        assert not self.locked
        self.locked = True
        try:
            yield
        finally:
            self.locked = False
