"""Lists the backends, one row each, with what is known about a library before its import.

To add a backend, write its file in `backends/` and its row here. Options, doctor, fingerprints and the
simulator read this table; it loads nothing but the standard library.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class BackendRow(NamedTuple):
    """Describes one backend.

    Attributes:
        opened_by: module in `pytest_gpukern.backends` and class in it, as "cupy:CupyBackend".
        needs: (module, package that brings it), in the order in which a missing one is reported.
        instead: module that does for all that it needs, where nothing is compiled without a device.
        extra: the extra, or extras, of this package that bring all that.
        simulated_by: what opens it while the simulator is on; None if it cannot run there.
        captured_by: module in `pytest_gpukern.code` and the class in it that stands in for the device while
            kernels are compiled without one; None if that cannot be.
        arrays: the types of its arrays, each as (module, name).
        packages: top-level Python packages that define its errors and array types.
        imports: modules that take long to import and make no CUDA context. A session imports them before its
            turn on the device, and ends itself if one makes a context after all.
        distributions: names of its distributions, whose versions are part of a fingerprint.
    """

    opened_by: str
    on_gpu: bool = True
    needs: tuple[tuple[str, str], ...] = ()
    instead: str | None = None
    extra: str | None = None
    simulated_by: str | None = None
    captured_by: str | None = None
    arrays: tuple[tuple[str, str], ...] = ()
    packages: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()


_CUDA_CORE = ("cuda.core", "cuda-core")

BACKENDS: dict[str, BackendRow] = {
    "host": BackendRow(
        "host:HostBackend",
        on_gpu=False,
        arrays=(("numpy", "ndarray"),),
        imports=("numpy", "scipy", "scipy.special"),
    ),
    "numba": BackendRow(
        "numba:NumbaBackend",
        needs=(("numba", "numba"), ("numba.cuda", "numba-cuda")),
        instead="numba_cuda_mlir",
        extra="cu13",
        simulated_by="numba:SimulatedBackend",
        captured_by="numba:NumbaStandIn",
        arrays=(
            ("numba.cuda.simulator.cudadrv.devicearray", "FakeCUDAArray"),
            *(
                (f"{package}.cudadrv.devicearray", f"{kind}NDArray")
                for package in ("numba.cuda", "numba_cuda_mlir.numba_cuda")
                for kind in ("Device", "Managed", "Mapped")
            ),
        ),
        packages=("numba", "numba_cuda", "numba_cuda_mlir"),
        imports=("numba", "numba.cuda"),
        distributions=("numba", "numba-cuda", "numba-cuda-mlir"),
    ),
    "cupy": BackendRow(
        "cupy:CupyBackend",
        needs=(("cupy", "cupy-cuda13x"), _CUDA_CORE),
        extra="cu13",
        arrays=(("cupy", "ndarray"),),
        packages=("cupy", "cupy_backends"),
        imports=("cupy", "cuda.core"),
        distributions=("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy"),
    ),
    "pycuda": BackendRow(
        "pycuda:PycudaBackend",
        needs=(("pycuda", "pycuda"), _CUDA_CORE),
        extra="cu13,pycuda",
        arrays=(("pycuda.gpuarray", "GPUArray"),),
        packages=("pycuda",),
        imports=("pycuda.driver", "pycuda.compiler", "pycuda.gpuarray"),
        distributions=("pycuda",),
    ),
    "skcuda": BackendRow(
        "skcuda:SkcudaBackend",
        # mako is PyCUDA's own need, but only of the part that scikit-cuda loads.
        needs=(("pycuda", "pycuda"), ("skcuda", "scikit-cuda"), ("mako", "mako"), _CUDA_CORE),
        extra="cu13,pycuda",
        packages=("skcuda",),
        distributions=("scikit-cuda",),
    ),
    "torch": BackendRow(
        "torch:TorchBackend",
        needs=(("torch", "torch"), _CUDA_CORE),
        extra="torch",
        arrays=(("torch", "Tensor"),),
        packages=("torch",),
        imports=("torch",),
        distributions=("torch", "triton"),  # torch.compile's kernels are Triton's
    ),
    "triton": BackendRow(
        "torch:TritonBackend",
        needs=(("torch", "torch"), ("triton", "triton"), _CUDA_CORE),
        extra="triton",
        simulated_by="torch:InterpretedBackend",
        captured_by="triton:TritonStandIn",
        packages=("triton",),
        imports=("torch", "triton"),
        distributions=("triton",),
    ),
    "dask": BackendRow(
        "cupy:DaskBackend",
        needs=(("dask", "dask[array]"), ("cupy", "cupy-cuda13x"), _CUDA_CORE),
        extra="dask,cu13",
        packages=("dask",),
        distributions=("dask",),
    ),
}


def cuda_packages() -> set[str]:
    """Returns the top-level Python packages whose errors are CUDA's or a backend's."""
    return {"cuda"}.union(*(row.packages for row in BACKENDS.values()))


def imports_of(backends: Iterable[str | None]) -> tuple[str, ...]:
    """Returns what a session of cases imports before its turn, each once; nothing of plain tests (None)."""
    rows = (BACKENDS.get(backend or "") for backend in dict.fromkeys(backends))
    return tuple(dict.fromkeys(name for row in rows if row is not None for name in row.imports))


def runs_on_gpu(backend: str | None) -> bool:
    """Says whether a backend's variants run on the GPU; plain tests (None) and unknown backends count so."""
    row = BACKENDS.get(backend or "")
    return row is None or row.on_gpu


def select_the_host_only(selected: Sequence[str] | None) -> bool:
    """Says whether these backends, all of them if None, leave nothing that runs on the GPU."""
    return bool(selected) and not any(map(runs_on_gpu, selected or ()))


def distributions_of_others(backend: str | None) -> set[str]:
    """Returns the distributions that no case of a GPU backend uses; none for a host's or a plain test's."""
    own = BACKENDS.get(backend or "")
    if own is None or not own.on_gpu:
        return set()
    needed = {package for _, package in own.needs} | set(own.distributions)
    rows = [row for row in BACKENDS.values() if needed.isdisjoint(row.distributions)]
    return {name for row in rows for name in row.distributions}


def library_distributions() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in BACKENDS.values() for name in row.distributions))


def missing_library(name: str, *, compiles: bool = False) -> str | None:
    """Says which package backend `name` lacks and what installs it, or None; imports nothing heavy.

    A run that only `compiles` needs nothing that works on the device.
    """
    row = BACKENDS[name]
    if row.instead and installed(row.instead) and not compiles:
        return None
    for module, package in row.needs:
        if not installed(module) and not (compiles and module == "cuda.core"):
            remedy = "" if row.extra is None else f"; pip install 'pytest-gpukern[{row.extra}]'"
            return f"{package} is not installed{remedy}"
    return None


def installed(module: str) -> bool:
    """Returns whether `module` can be found, without executing anything."""
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    if module == "numba.cuda":  # Numba has an older numba.cuda of its own; we need numba-cuda's
        return importlib.util.find_spec("numba_cuda") is not None
    locations = list(spec.submodule_search_locations or ())
    return not rest or importlib.machinery.PathFinder.find_spec(module, locations) is not None
