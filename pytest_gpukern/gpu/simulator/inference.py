"""The return type of a `vectorize` body whose signature does not give one."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported


def infer_return_type(function: Callable[..., Any], argument_types: Any) -> Any:
    """Return the Numba type that compiling `function` gives, by compiling it for the CPU.

    The real decorator takes the type that Numba infers for CUDA; the CPU's rules are the same for what both
    can compile. Device functions among the globals are compiled along. Raises SimulatorUnsupported when the
    CPU cannot compile the body: then the signature has to name the type.
    """
    import numba
    from numba.core.errors import NumbaError

    try:
        dispatcher = numba.njit(_for_cpu(function, {}))
        dispatcher.compile(tuple(argument_types))
        return dispatcher.overloads[tuple(argument_types)].signature.return_type
    except NumbaError as exc:
        arguments = ", ".join(map(str, argument_types))
        raise SimulatorUnsupported(
            f"inferring the return type of {function.__name__}({arguments}) "
            f"(give it in the signature, as in 'float32({arguments})')"
        ) from exc


def _for_cpu(function: Any, done: dict[Any, Any]) -> Any:
    """Copy a function, with the device functions among its globals made CPU functions."""
    import numba
    from numba.cuda.simulator.kernel import FakeCUDAKernel

    if function in done:
        return done[function]
    copied_globals = dict(function.__globals__)
    copy = FunctionType(
        function.__code__, copied_globals, function.__name__, function.__defaults__, function.__closure__
    )
    done[function] = copy
    for name in function.__code__.co_names:
        value = copied_globals.get(name)
        if isinstance(value, FakeCUDAKernel):
            copied_globals[name] = numba.njit(_for_cpu(value.py_func, done))
    return copy
