"""Simulated threads: an exception in one always reaches the launch."""

import sys
from typing import Any

from pytest_gpukern.gpu.simulator.patching import original, replace


def mend_threads() -> None:
    """Report an exception whose type cannot be made from one string.

    A simulated thread re-raises as ``type(error)("tid=… ctaid=…: message")``. For types that want more
    arguments (NumPy's UFuncNoLoopError, UnicodeDecodeError, …) that fails inside the thread, the launch sees
    no exception, and the kernel counts as done.
    """
    from numba.cuda.simulator import kernel as simulated

    thread_class = original(simulated, "BlockThread")
    run = original(thread_class, "run")

    def run_and_report(self: Any) -> None:
        try:
            run(self)
        except Exception as exc:  # noqa: BLE001 - the kernel's own exception, of any type
            cause = exc.__context__ or exc
            message = (
                f"tid={list(self.threadIdx)} ctaid={list(self.blockIdx)}: {type(cause).__name__}: {cause}"
            )
            self.exception = (RuntimeError(message), sys.exc_info()[2])

    replace(thread_class, "run", run_and_report)
