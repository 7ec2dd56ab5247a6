"""Says whether two sessions of a case had the device do the same, so that no time has to tell.

The other session is on record, or of another revision.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from pytest_gpukern.baseline.record import device_work
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.values.backend_table import distributions_of_others
from pytest_gpukern.values.result import Result


class SameWork(enum.Enum):
    """Says how much two sessions of a case are known to have in common."""

    NO = "something differs or is not known"
    SEEN = "what timers see is the same"
    """What they do not see may differ, such as a number of rounds; so the times have to agree, too."""
    FILES = "no file of the project differs that the test loads"
    """What is no file may differ, such as an option. So a time that is slower is measured all the same."""
    ALL = "what no timer sees is the same, too"


def same_work(now: Result, before: Result, key: str) -> SameWork:
    """Says whether a scope, by its key, had the device do the same in both sessions.

    Timers see machine code, launches, copies and their order. Inputs, the problem's version, the point,
    parameters, libraries, driver, the card's model and its clock and power policy have to agree, too. The
    card itself may differ.

    Timers see neither scalar arguments, nor what a closure holds. Both are the same if all files are, unless
    they come from elsewhere. All is known if the scalar arguments are known on both sides. These do not tell
    what the host does between two launches, so they suffice for a call of one kernel. Code of ours makes the
    copies of a transfer, and the inputs say which.
    """
    timed = [(result, time) for result in (now, before) if (time := result.time(key)) is not None]
    if len(timed) < 2 or not now.case.on_gpu or conditions_of(now, key) != conditions_of(before, key):
        return SameWork.NO
    inputs, scalars = {now.inputs, before.inputs}, {now.scalars, before.scalars}
    if len(inputs - {None}) > 1:
        return SameWork.NO
    if key.startswith("transfer/"):
        return SameWork.NO if None in inputs else SameWork.ALL
    work, work_before = (device_work(*each) for each in timed)
    if work is None or work != work_before:
        return SameWork.NO
    # Scalars that differ prove nothing: bytes between the members of a structure may hold anything.
    known = len(inputs) == 1 and len(scalars - {None}) < 2
    same_files = bool(now.files) and now.files == before.files
    one_kernel = key.startswith("kernel/") and len(timed[0][1].order) == 1
    by_scalars = one_kernel and None not in inputs | scalars
    if known and by_scalars:
        return SameWork.ALL
    return SameWork.FILES if known and same_files else SameWork.SEEN


def newest(past: Sequence[SessionTime]) -> Result:
    """Returns the session that was recorded last: an appended one may be of another state of the code."""
    return max((time.session for time in past), key=lambda session: session.recorded)


def conditions_of(result: Result, key: str) -> tuple[object, ...]:
    """Returns what has to be equal besides the work; what is not known counts, too."""
    case, of = result.case, result.fingerprint
    on_device = key.startswith(("kernel/", "transfer/"))
    unused = {*distributions_of_others(case.backend)}
    if on_device:  # the machine code tells which of the two Numbas compiled a kernel
        unused.add("numba-cuda-mlir")
    libraries = {name: version for name, version in of.libraries.items() if name not in unused}
    clocks = (of.power_limit_w, of.max_sm_clock_mhz, of.max_memory_clock_mhz)
    driver = (of.driver_version, of.cuda_driver_version, of.mig_profile, of.device_model_key)
    python = None if on_device else of.python_version  # else the host's part of a call is in the time
    return (case.problem_version, case.id, case.sizes, libraries, *clocks, *driver, python)
