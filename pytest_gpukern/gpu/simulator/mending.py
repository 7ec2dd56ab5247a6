"""The list of what is mended in Numba's simulator, in order."""

import sys

from pytest_gpukern.gpu.simulator.errors import SimulatorError
from pytest_gpukern.gpu.simulator.patching import numba_cuda_version

_MARK = "_mended_by_pytest_gpukern"


def mend() -> None:
    """Import `numba.cuda` and mend its simulator, once a process.

    Raises SimulatorError when numba-cuda cannot be imported, is not the simulator, or lacks what is mended.
    """
    try:
        from numba.cuda import simulator
    except (ImportError, AttributeError) as exc:  # AttributeError: NumPy >= 2.5 lacks np.row_stack
        raise SimulatorError(
            f"numba-cuda {numba_cuda_version()} cannot be imported ({exc}), so its CUDA simulator cannot "
            "run. Install versions that fit each other (pytest-gpukern[numba]), or use "
            "--gpukern-simulator=never."
        ) from exc
    if getattr(simulator, _MARK, False):
        return
    if "numba.cuda.simulator_init" not in sys.modules:
        raise SimulatorError(
            "NUMBA_ENABLE_CUDASIM=1 was set, but numba.cuda came up for a real GPU: it was loaded, or its "
            "configuration changed, before pytest-gpukern could switch the simulator on. Set "
            "NUMBA_ENABLE_CUDASIM=1 in the environment before Python starts."
        )
    _mend_everything()
    setattr(simulator, _MARK, True)


def _mend_everything() -> None:
    from pytest_gpukern.gpu.simulator.bits import mend_bit_functions
    from pytest_gpukern.gpu.simulator.decoration import mend_jit
    from pytest_gpukern.gpu.simulator.device import mend_device
    from pytest_gpukern.gpu.simulator.events import mend_events
    from pytest_gpukern.gpu.simulator.fused import mend_float_functions
    from pytest_gpukern.gpu.simulator.half import mend_half_precision
    from pytest_gpukern.gpu.simulator.launch import mend_launches
    from pytest_gpukern.gpu.simulator.namespace import mend_namespace
    from pytest_gpukern.gpu.simulator.sharedmem import mend_shared_memory
    from pytest_gpukern.gpu.simulator.threads import mend_threads
    from pytest_gpukern.gpu.simulator.ufuncs import mend_ufuncs

    mend_launches()
    mend_threads()
    mend_jit()
    mend_events()
    mend_device()
    mend_shared_memory()
    mend_bit_functions()
    mend_float_functions()
    mend_half_precision()
    mend_ufuncs()
    mend_namespace()
