"""Opens one library in a process of its own and says whether that worked: run by `gpukern doctor`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings

CUPTI = "cupti"
ON_GPU, IMPORT_ONLY = "gpu", "import"


def problem_of(name: str, how: str) -> str | None:
    """Why a backend, or CUPTI as a timer, cannot be used, in words, or None.

    Args:
        name: of a backend, or `cupti`.
        how: `gpu` to open it on the first visible device, `import` to import its library only.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if how == IMPORT_ONLY:
                from pytest_gpukern.backends.backend import LIBRARIES

                for module, _ in LIBRARIES[name][:1]:
                    importlib.import_module(module)
            else:
                _open_on_the_device(name)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
        return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
    return None


def _open_on_the_device(name: str) -> None:
    from pytest_gpukern.backends.backend import open_backend
    from pytest_gpukern.gpu.nvml import open_nvml
    from pytest_gpukern.gpu.pinning import pin
    from pytest_gpukern.gpu.runtime import runtime
    from pytest_gpukern.gpu.selection import select
    from pytest_gpukern.gpu.visibility import visible_devices
    from pytest_gpukern.run.scopes import gpu_timer

    chosen = select(None, visible_devices(open_nvml(), os.environ))
    pin(chosen, os.environ, sys.modules)
    if name == CUPTI:
        gpu_timer(CUPTI, runtime().device.default_stream)
    else:
        open_backend(name, simulated=False)


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps({"problem": problem_of(sys.argv[1], sys.argv[2])}) + "\n")
