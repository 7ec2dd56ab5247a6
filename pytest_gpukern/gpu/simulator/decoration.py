"""`cuda.jit`: the keywords that the real one knows, no more and no fewer."""

import inspect
from typing import Any

from pytest_gpukern.gpu.simulator.patching import original, publish

# What the real jit takes through **kws (its docstring, and `_Kernel.__init__` in numba.cuda.dispatcher).
_KEYWORDS_BEHIND_KWS = {"boundscheck", "extensions", "fastmath", "max_registers"}
_DEPRECATED = {"argtypes", "bind", "restype"}


def mend_jit() -> None:
    """Accept `lineinfo`, `max_registers`, `launch_bounds`, … and still refuse what no version knows.

    The accepted names are those of the installed numba-cuda's own signature. They steer the compiler, so the
    simulator has nothing to do for them; `extensions`, which do change what a kernel receives, are passed on
    (the fake drops them). `link` and `boundscheck` keep raising NotImplementedError. The real jit swallows an
    unknown keyword and fails with a KeyError or TypeError when it compiles; here it is a TypeError at once.
    """
    from numba.cuda import decorators
    from numba.cuda.core.errors import DeprecationError
    from numba.cuda.simulator import api

    fake_jit = original(api, "jit")
    fakes = set(inspect.signature(fake_jit).parameters) - _DEPRECATED
    reals = {
        name
        for name, parameter in inspect.signature(original(decorators, "jit")).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    known = fakes | reals | _KEYWORDS_BEHIND_KWS

    def jit(func_or_sig: Any = None, device: bool = False, **options: Any) -> Any:
        """Decorate a kernel or device function for the simulator."""
        for name in options:
            if name in _DEPRECATED:
                raise DeprecationError(
                    f"Deprecated keyword argument `{name}`. Signatures should be passed as the first "
                    "positional argument."
                )
            if name not in known:
                raise TypeError(f"jit() got an unexpected keyword argument {name!r}")
        passed = {name: value for name, value in options.items() if name in fakes}
        passed["link"] = passed.get("link") or None  # the real default is (), which the fake refuses
        made = fake_jit(func_or_sig, device=device, **passed)
        extensions = list(options.get("extensions") or ())
        if inspect.isfunction(made):
            return lambda function: _with_extensions(made(function), extensions)
        return _with_extensions(made, extensions)

    publish("jit", jit)


def _with_extensions(kernel: Any, extensions: list[Any]) -> Any:
    kernel.extensions = extensions
    return kernel
