"""Records what a test launches, compiles it, and ends the test there: what follows needs results."""

from __future__ import annotations

import functools
import importlib
import math
import tempfile
import traceback
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_gpukern.backends.backend import missing_library
from pytest_gpukern.code.disassembly import Store, facts
from pytest_gpukern.code.launches import CannotBeKnown, DoesNotCompile, Launch, StandIn
from pytest_gpukern.code.tools import DisassemblyError, require_tools
from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error
from pytest_gpukern.measure.ceilings import default_cache_dir
from pytest_gpukern.problems.call_by_name import ProblemError, call_by_name, place_of
from pytest_gpukern.problems.cases import Case
from pytest_gpukern.run.call_subject import CallTarget, result_of
from pytest_gpukern.run.case_subject import case_info
from pytest_gpukern.run.environment import available_host_bytes
from pytest_gpukern.run.measured_test import MeasuredTest
from pytest_gpukern.run.spine import Evidence
from pytest_gpukern.session.stash import TEST_TYPE, settings_of
from pytest_gpukern.values.backend_table import BACKENDS
from pytest_gpukern.values.note import CANNOT_BE_KNOWN, NOT_COVERED, NotRun
from pytest_gpukern.values.options import SettingsError
from pytest_gpukern.values.result import CompiledCode, KernelFacts

_PACKAGE = Path(__file__).parent.parent


class Recorded(BaseException):
    """Ends a test whose launches are recorded. A test catches `Exception`, and must not catch this."""


class StandIns:
    """Holds what stands in for the device in each library that is installed."""

    def __init__(self, stand_ins: Mapping[str, StandIn]) -> None:
        self.of = stand_ins
        self.launches: list[tuple[str, Launch]] = []
        for name, stand_in in stand_ins.items():
            stand_in.install(functools.partial(self._record, name))

    def _record(self, backend: str, launch: Launch) -> None:
        self.launches.append((backend, launch))

    def begin(self) -> None:
        """Forgets what an earlier test launched."""
        self.launches.clear()
        for stand_in in self.of.values():
            stand_in.begin()

    def why_unknown(self, error: BaseException) -> str | None:
        if isinstance(error, CannotBeKnown):
            return str(error)
        return next(filter(None, (of.why_unknown(error) for of in self.of.values())), None)


_installed: StandIns | None = None
"""They replace parts of libraries, so a process has them once."""


def install(backends: tuple[str, ...]) -> StandIns:
    """Installs the stand-ins of the backends, all if there are none, once for this process.

    Raises:
        SettingsError: none of them is installed here, or one is of a version that we do not know.
    """
    global _installed
    if _installed is not None:
        return _installed
    rows = {name: row for name, row in BACKENDS.items() if row.recorded_by}
    wanted = [name for name in rows if not backends or name in backends]
    missing = {name: why for name in wanted if (why := missing_library(name, compiles=True)) is not None}
    if len(missing) == len(wanted):
        raise SettingsError(f"--gpukern-code: {'; '.join(missing.values()) or 'no backend compiles here'}")
    try:
        _installed = StandIns({name: _made(name) for name in wanted if name not in missing})
    except ImportError as error:
        raise SettingsError(f"--gpukern-code: {error}") from error
    return _installed


def install_for(config: pytest.Config) -> StandIns:
    """Installs them as a run asks for; raises pytest.UsageError where that cannot be."""
    try:
        require_tools()
        return install(settings_of(config).backends)
    except DisassemblyError as error:
        raise pytest.UsageError(f"--gpukern-code: {error}") from error
    except SettingsError as error:
        raise pytest.UsageError(str(error)) from error


def _made(name: str) -> StandIn:
    module, _, kind = (BACKENDS[name].recorded_by or "").partition(":")
    made: StandIn = getattr(importlib.import_module(f"{__package__}.{module}"), kind)()
    return made


class Recorder:
    """Has the tests of this process record; a pytest plugin of a process that another one started."""

    def __init__(self, config: pytest.Config) -> None:
        self._stand_ins = install_for(config)
        self._root = config.rootpath
        kind = type("RecordedTestOfRun", (RecordedTest,), {"stand_ins": self._stand_ins})
        config.stash[TEST_TYPE] = kind

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        self._stand_ins.begin()
        with self._ending():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        with self._ending():
            return (yield)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Passes a test that has recorded, and skips one whose launches cannot be known, with its line."""
        try:
            yield
        except Recorded:
            pass
        except Exception as error:
            why = self._stand_ins.why_unknown(error)
            if why is not None:
                reason = NotRun(CANNOT_BE_KNOWN, f"{self._users_line(error)}: {why}")
                raise pytest.skip.Exception(reason, _use_item_location=True) from None
            if isinstance(error, (DoesNotCompile, DisassemblyError)):
                raise pytest.fail.Exception(str(error), pytrace=False) from None
            missing = missing_gpu_in_error(error)
            if missing is None and "CUDA" not in type(error).__module__.upper():
                raise
            reason = NotRun(NOT_COVERED, f"{type(error).__module__.partition('.')[0]} needs a device")
            raise pytest.skip.Exception(reason, _use_item_location=True) from None

    def _users_line(self, error: BaseException) -> str:
        """Returns file and line of the innermost code below the root folder that is not ours."""
        frames = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if Path(frame.f_code.co_filename).is_relative_to(self._root)
            and not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE)
            and "site-packages" not in frame.f_code.co_filename
        ]
        return place_of(*frames[-1]) if frames else "the test"


class RecordedTest(MeasuredTest):
    """Follows one test whose launches are recorded and compiled, and not executed."""

    stand_ins: StandIns

    def measure_call(self, target: CallTarget) -> NoReturn:
        self._begin_use()
        self.evidence = Evidence(result_of(self.context))
        turn = target.next_turn()
        self.stand_ins.launches.clear()  # of the preparation
        turn.call()
        self._conclude()

    def measure_case(self, case: Case) -> None:
        self._begin_use()
        if case.variant.unavailable is not None:
            pytest.skip(case.variant.unavailable)
        why = self.environment.libraries.unusable(case.variant.backend) or case.variant.limit_exceeded(
            case.point
        )
        if why is not None:
            pytest.skip(why)
        stand_in = self.stand_ins.of.get(case.variant.backend)
        if stand_in is None:
            pytest.skip(NotRun(NOT_COVERED, f"kernels of {case.variant.backend}"))
        environment, problem = self.environment, case.problem
        point = problem.fit(case.point, environment.memory_budget_bytes)
        info = case_info(case, point, self.context.test_file)
        self.evidence = Evidence(self.context.new_result(info, simulated=False))
        try:
            arrays = self._arrays(case, point)
            launch = self._prepared(case, point, arrays, stand_in)
        except ProblemError as error:
            self._fail(error.located)
        self.stand_ins.launches.clear()
        launch()
        self._conclude()

    def reject(self, case: Case) -> NoReturn:
        """Skips a broken variant: only what it computes is wrong."""
        self.rejected = case
        pytest.skip(NotRun(NOT_COVERED, "broken variants"))

    def _arrays(self, case: Case, point: dict[str, Any]) -> dict[str, Any]:
        """Returns inputs and outputs as NumPy has them. The contents of outputs are never touched."""
        import numpy as np

        problem = case.problem
        inputs = _inputs_of(self.environment).get(problem, point)
        outputs = {}
        for name, spec in problem.output_specs(point, inputs).items():
            size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            if size > available_host_bytes():
                pytest.skip(NotRun("too large", f"{name} needs {size / 2**30:.1f} GiB of host memory"))
            outputs[name] = inputs.get(name, None)
            if outputs[name] is None:
                outputs[name] = np.empty(spec.shape, spec.dtype)
        return {**inputs, **outputs}

    def _prepared(self, case: Case, point: dict[str, Any], arrays: dict[str, Any], stand_in: StandIn) -> Any:
        prepare = case.variant.prepare
        assert prepare is not None
        given = {
            name: stand_in.given(value) if getattr(value, "ndim", 0) and not case.variant.host_data else value
            for name, value in arrays.items()
        }
        named = {**case.problem.named(point), **case.parameters, **given, "stream": stand_in.stream}
        return call_by_name(prepare, named)

    def _conclude(self) -> NoReturn:
        """Compiles what was launched for each architecture, and ends the test."""
        if not self.stand_ins.launches:
            pytest.skip(NotRun(NOT_COVERED, "it launches no kernel of Numba or Triton"))
        architectures = self.environment.settings.code
        code = {name: _compiled(self.stand_ins.launches, name) for name in architectures}
        refused = [f"{name}: {of.refused}" for name, of in code.items() if of.refused]
        if len(refused) == len(code):
            self._fail(f"does not compile for {refused[0]}")
        assert self.evidence is not None
        self.evidence.add(code=code)
        self.verified = True
        raise Recorded


class _Inputs:
    """Keeps the inputs of the newest point, for all variants; there is no reference to make."""

    def __init__(self) -> None:
        self._of: tuple[Any, str] | None = None
        self._inputs: dict[str, Any] = {}

    def get(self, problem: Any, point: dict[str, Any]) -> dict[str, Any]:
        wanted = (problem, repr(sorted(point.items())))
        if self._of != wanted:
            self._of, self._inputs = wanted, {}
            self._inputs = problem.inputs(point)
        return dict(self._inputs)


@functools.cache
def _inputs_of(environment: Any) -> _Inputs:  # noqa: ARG001 - one for each run in a process
    return _Inputs()


def _compiled(launches: list[tuple[str, Launch]], architecture: str) -> CompiledCode:
    """Returns the facts of each kernel, in the order of first launches; equal ones once."""
    compilers = ", ".join(dict.fromkeys(_compiler(backend) for backend, _ in launches))
    made: list[KernelFacts] = []
    for _, launch in launches:
        try:
            compiled = launch.compiled(architecture)
        except DoesNotCompile as error:
            return CompiledCode(compilers, refused=str(error))
        known = facts(compiled, launch.kernel, architecture, launch.grid, _store())
        if known not in made:
            made.append(known)
    return CompiledCode(compilers, tuple(made))


@functools.cache
def _store() -> Store:
    folder = default_cache_dir()
    return Store((folder or Path(tempfile.mkdtemp())) / "code")


@functools.cache
def _compiler(backend: str) -> str:
    versions = []
    for name in BACKENDS[backend].compilers:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)
