"""Records what a test launches, compiles it, and ends the test there: what follows needs results."""

from __future__ import annotations

import functools
import pkgutil
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from pytest_gpukern.code.disassembly import DisassemblyError, facts, require_tools
from pytest_gpukern.code.launches import (
    H200,
    CannotBeKnown,
    CapturedLaunch,
    DoesNotCompile,
    StandIn,
    Unknown,
    capability,
)
from pytest_gpukern.gpu.fingerprint import library_versions
from pytest_gpukern.gpu.kernel_facts import autotuned
from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error, torch_wants_gpu
from pytest_gpukern.problems.call_by_name import Point, ProblemError, call_by_name, place_of
from pytest_gpukern.problems.cases import Case
from pytest_gpukern.problems.problem import Problem
from pytest_gpukern.run.call_subject import CallTarget, result_of
from pytest_gpukern.run.case_subject import case_info, why_not_here
from pytest_gpukern.run.environment import available_host_bytes
from pytest_gpukern.run.measured_test import MeasuredTest
from pytest_gpukern.run.spine import Evidence
from pytest_gpukern.session.stash import NEW_TEST, refusing, settings_of
from pytest_gpukern.values.backend_table import BACKENDS, cuda_packages, missing_library
from pytest_gpukern.values.note import CANNOT_BE_KNOWN, NOT_COVERED, NotRun
from pytest_gpukern.values.result import CompiledCode, KernelFacts
from pytest_gpukern.values.untrusted_json import FileError

_PACKAGE = Path(__file__).parent.parent
_NO_KERNEL = "no kernel of Numba or Triton; hand one over: gpu_benchmark(kernel[grid, block], x, y)"


class Captured(BaseException):
    """Ends a test whose launches are recorded. A test catches `Exception`, and must not catch this."""


class NotCovered(Exception):  # noqa: N818
    """Says why nothing of a test is compiled, and what to write instead."""


class _Device:
    """Is `gpu_device`: an H200, as libraries tell host code, of the architecture that is compiled for."""

    index, name, uuid, mig_profile, is_simulated = 0, H200.name, H200.uuid, None, False
    memory_total_bytes = memory_free_bytes = H200.memory_bytes
    multiprocessor_count, l2_bytes = H200.multiprocessors, H200.l2_bytes

    def __init__(self, architectures: tuple[str, ...]) -> None:
        self._architectures = architectures

    @property
    def compute_capability(self) -> tuple[int, int]:
        if len(self._architectures) > 1:
            remedy = f"compile for one of them a run: --gpukern-code={self._architectures[0]}"
            raise NotCovered(f"gpu_device.compute_capability differs between architectures; {remedy}")
        return capability(self._architectures[0])


class StandIns:
    """Holds what stands in for the device in each library, and what the current test has launched."""

    def __init__(self, backends: tuple[str, ...]) -> None:
        self.of: dict[str, StandIn] = {}
        self.launches: list[CapturedLaunch] = []
        for name in backends:
            self.of[name] = pkgutil.resolve_name(f"{__package__}.{BACKENDS[name].captured_by}")()
            self.of[name].install(self.launches.append)

    def begin(self) -> None:
        """Forgets what an earlier test launched."""
        self.launches.clear()
        for stand_in in self.of.values():
            stand_in.begin()

    def why_unknown(self, error: BaseException) -> str | None:
        if isinstance(error, CannotBeKnown):
            return str(error)
        return next(filter(None, (of.why_unknown(error) for of in self.of.values())), None)


def install(config: pytest.Config) -> StandIns:
    """Installs the stand-ins of the selected backends that are there, once for this process.

    Raises:
        pytest.UsageError: none of them is installed here, or a library or tool is of a version that we do not
            know.
    """
    selected = settings_of(config).backends
    wanted = [name for name, row in BACKENDS.items() if row.captured_by and name in (selected or (name,))]
    missing = {name: why for name in wanted if (why := missing_library(name, compiles=True)) is not None}
    with refusing(DisassemblyError, ImportError, option="--gpukern-code"):
        require_tools()
        if len(missing) == len(wanted):
            raise ImportError("; ".join(missing.values()) or "no selected backend can be compiled")
        return _installed(tuple(name for name in wanted if name not in missing))


_installed = functools.cache(StandIns)
"""They replace parts of libraries, so a process has them once."""


class CapturePlugin:
    """Has the tests of this process record; a pytest plugin of a process that another one started."""

    def __init__(self, config: pytest.Config) -> None:
        self._stand_ins = install(config)
        self._root = config.rootpath
        new_test: Callable[..., MeasuredTest] = functools.partial(CapturedTest, self._stand_ins, {})
        config.stash[NEW_TEST] = new_test

    @pytest.fixture(scope="session")
    def gpu_device(self, pytestconfig: pytest.Config) -> _Device:
        return _Device(settings_of(pytestconfig).code)

    @pytest.fixture(scope="session")
    def gpu_synchronize(self) -> Callable[[], None]:
        return lambda: None

    @pytest.fixture(scope="session")
    def gpu_warmup(self) -> Callable[..., Unknown]:
        def call_once(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Unknown:
            function(*args, **kwargs)
            return Unknown("a warm-up")

        return call_once

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._stand_ins.begin()
        with self._ending(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._ending(item):
            yield
            raise NotCovered(f"its body measures {_NO_KERNEL}")

    @contextmanager
    def _ending(self, item: pytest.Item) -> Iterator[None]:
        """Passes a test that has recorded; skips one whose launches are not known, with line and remedy."""
        try:
            yield
        except Captured:
            pass
        except (DoesNotCompile, DisassemblyError) as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except Exception as error:
            library, unknown = type(error).__module__.partition(".")[0], self._stand_ins.why_unknown(error)
            uncovered = cuda_packages().difference(*(BACKENDS[of].packages for of in self._stand_ins.of))
            kind, why = NOT_COVERED, "it needs a device; launch on arrays of Numba or PyTorch"
            if unknown is not None:
                kind, why = CANNOT_BE_KNOWN, f"{unknown}; do that behind the measured call"
            elif isinstance(error, NotCovered):
                why = str(error)
            elif not (library in uncovered or missing_gpu_in_error(error) or torch_wants_gpu(error)):
                raise
            reason = NotRun(kind, f"{self._users_line(error, item)}: {why}")
            raise pytest.skip.Exception(reason, _use_item_location=True) from None

    def _users_line(self, error: BaseException, item: pytest.Item) -> str:
        """Returns file and line of the user's innermost code below the root folder, or of the test."""
        frames = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if Path(frame.f_code.co_filename).is_relative_to(self._root)
            and not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE)
            and "site-packages" not in frame.f_code.co_filename
        ]
        return place_of(*frames[-1]) if frames else place_of(str(item.path), 1 + (item.location[1] or 0))


_Inputs = dict[tuple[Problem, str], dict[str, Any]]
"""Problem and point → its inputs; of one point at a time."""


class CapturedTest(MeasuredTest):
    """Follows one test whose launches are recorded and compiled, and not executed."""

    def __init__(self, stand_ins: StandIns, inputs: _Inputs, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stand_ins, self.inputs = stand_ins, inputs

    def measure_call(self, target: CallTarget) -> NoReturn:
        self._begin_use()
        self.evidence = Evidence(result_of(self.context))
        if target.loop is not None:
            target.loop.run(lambda calls, *_: self._conclude(calls))
        self._conclude(target.next_turn().call)

    def measure_case(self, case: Case) -> None:
        self._begin_use()
        try:
            why = why_not_here(case, self.environment)
            if why is not None:
                pytest.skip(why)
            info = case_info(case, self.context.test_file)
            self.evidence = Evidence(self.context.new_result(info, simulated=False))
            launch = self._prepared(case)
        except ProblemError as error:
            self._fail(error.located)
        self._conclude(launch)

    def reject(self, case: Case) -> NoReturn:
        """Skips a broken variant: only what it computes is wrong."""
        self.rejected = case
        pytest.skip(NotRun(NOT_COVERED, "broken variants"))

    def _arrays(self, case: Case) -> dict[str, Any]:
        """Returns inputs and outputs as NumPy has them. The contents of outputs are never touched."""
        problem, point = case.problem, case.point
        inputs = self._inputs_at(problem, point)
        outputs = {}
        for name, spec in problem.output_specs(point, inputs).items():
            if spec.nbytes > available_host_bytes():
                pytest.skip(NotRun("too large", f"{name} needs {spec.nbytes / 2**30:.1f} GiB of host memory"))
            if name not in inputs:
                outputs[name] = np.empty(spec.shape, spec.dtype)
        return {**inputs, **outputs}

    def _inputs_at(self, problem: Problem, point: Point) -> dict[str, Any]:
        """Returns the inputs of a point, made once for all variants; there is no reference to make."""
        kept, wanted = self.inputs, (problem, repr(sorted(point.items())))
        if wanted not in kept:
            kept.clear()  # before others are made
            kept[wanted] = problem.inputs(point)
        return dict(kept[wanted])

    def _prepared(self, case: Case) -> Any:
        """Returns what the variant would have timed, on arrays of its library."""
        prepare, stand_in = case.variant.prepare, self.stand_ins.of[case.variant.backend]
        assert prepare is not None
        given = self._arrays(case)
        for name, value in given.items() if not case.variant.host_data else ():
            if getattr(value, "ndim", 0):
                given[name] = stand_in.given(value)
        named = {**case.problem.named(case.point), **case.parameters, **given, "stream": stand_in.stream}
        return call_by_name(prepare, named)

    def _conclude(self, call: Callable[[], object]) -> NoReturn:
        """Compiles what a call launches for each architecture, and ends the test.

        It is made again where an autotuner chose otherwise on a device of that architecture.
        """
        code: dict[str, CompiledCode] = {}
        last = None
        for name in self.environment.settings.code:
            chosen = self._on_record(name)
            if chosen != last:
                last = chosen
                self.stand_ins.launches.clear()
                for stand_in in self.stand_ins.of.values():
                    stand_in.choose(chosen)
                call()
            if not self.stand_ins.launches:
                raise NotCovered(f"it launches {_NO_KERNEL}")
            code[name] = _compiled(self.stand_ins.launches, name)
        refused = [f"{name}: {of.refused}" for name, of in code.items() if of.refused]
        if len(refused) == len(code):
            self._fail(f"does not compile for {refused[0]}")
        assert self.evidence is not None
        self.evidence.add(code=code)
        self.verified = True
        raise Captured

    def _on_record(self, architecture: str) -> Mapping[str, Mapping[str, str]]:
        """Returns what autotuners chose on devices of an architecture, such as `sm_90`."""
        assert self.result is not None
        try:
            return self.environment.store.autotuned(self.result.case, capability(architecture))
        except FileError as error:
            self._fail(str(error))


def _compiled(launches: list[CapturedLaunch], architecture: str) -> CompiledCode:
    """Returns the facts of each kernel, in the order of first launches; equal ones once."""
    distributions = dict.fromkeys(name for launch in launches for name in launch.compilers)
    versions = library_versions(tuple(distributions)).items()
    compilers = ", ".join(f"{name} {version}" for name, version in versions)
    kernels: dict[KernelFacts, None] = {}
    for launch in launches:
        try:
            compiled = launch.compiled(architecture)
        except DoesNotCompile as error:
            return CompiledCode(compilers, refused=str(error))
        kernels[facts(compiled, launch.kernel, architecture, launch.grid)] = None
    return CompiledCode(compilers, tuple(kernels), autotuned=autotuned(kernels))
