"""Says what is wrong with an installation, and what to do about it: values in, advice out."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpukern.doctor.machine import Gpu, Machine
from pytest_gpukern.measure.device_clocks import INVALIDATING
from pytest_gpukern.values.backend_table import BACKENDS

_MIB = 2**20
_UNEXPLAINED_BYTES = 2 * 2**30
"""Memory in use that no listed process explains; an idle driver keeps up to about 1 GiB for itself."""


class Severity(enum.StrEnum):
    """Says how bad it is."""

    ERROR = "error"
    """Nothing, or a part of what is installed, works."""
    WARNING = "warning"
    """It works, and measures something else than people think, or not as well as it could."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True)
class Advice:
    """Holds one thing to know about the machine, or to change.

    Attributes:
        subject: what it is about: `driver`, `GPU 0`, `environment`, a library.
        text: what is so, with values.
        remedy: what to do about it; empty for a note that asks for nothing.
    """

    level: Severity
    subject: str
    text: str
    remedy: str = ""


def advise(machine: Machine) -> list[Advice]:
    of_software = (_driver, _cuda_versions, _libraries, _timers, _sanitizer, _environment)
    all_advice = (advice for check in (*of_software, _each_gpu, _lock) for advice in check(machine))
    return sorted(all_advice, key=lambda advice: [*Severity].index(advice.level))


def _driver(machine: Machine) -> Iterator[Advice]:
    if machine.no_gpu is not None and (machine.driver_there or machine.gpus):
        remedy = (
            "nvidia-smi must list the GPU first: reboot after an upgrade of the driver; else see its "
            "installation, CUDA_VISIBLE_DEVICES, MIG"
        )
        yield Advice(Severity.ERROR, "driver", machine.no_gpu, remedy)
    elif machine.no_gpu is not None:
        text = f"{machine.no_gpu}: host variants run, and kernels of Numba and Triton in a simulator, untimed"
        yield Advice(Severity.NOTE, "driver", text)


def _cuda_versions(machine: Machine) -> Iterator[Advice]:
    """Checks that what is installed was built for a CUDA that the driver knows.

    A driver runs programs of its own CUDA's major version and older ones
    (https://docs.nvidia.com/deploy/cuda-compatibility/).
    """
    if machine.cuda is None:
        return
    major, minor = machine.cuda
    driver = f"driver {machine.driver or 'of unknown version'} supports CUDA {major}.{minor}"
    for wanted in (11, 12, 13):
        if (name := f"cupy-cuda{wanted}x") in machine.versions and wanted > major:
            remedy = f"pip install cupy-cuda{major}x instead"
            yield Advice(Severity.ERROR, name, f"is for CUDA {wanted}; {driver}", remedy)
    bindings = _version(machine, "cuda-bindings")
    if bindings and bindings[0] > major:
        text = f"{machine.versions['cuda-bindings']} is for CUDA {bindings[0]}; {driver}"
        remedy = f'pip install "cuda-bindings<{major + 1}", or upgrade the driver'
        yield Advice(Severity.ERROR, "cuda-bindings", text, remedy)
    cupti = _version(machine, "cupti-python")
    if cupti and cupti[0] != major:
        text = f"{machine.versions['cupti-python']} is for CUDA {cupti[0]}; {driver}"
        remedy = f'pip install "cupti-python=={major}.*"; until then kernels are timed by events'
        yield Advice(Severity.WARNING, "cupti-python", text, remedy)
    if machine.nvcc is not None and machine.nvcc > machine.cuda:
        level, text = Severity.ERROR, f"{'.'.join(map(str, machine.nvcc))} is newer than the driver: {driver}"
        if machine.nvcc[0] == major:
            level, text = Severity.NOTE, f"{text}; PTX that it makes cannot be loaded, machine code can"
        remedy = "put the toolkit of the driver's CUDA on PATH, or upgrade the driver"
        yield Advice(level, "nvcc", text, remedy)


def _libraries(machine: Machine) -> Iterator[Advice]:
    """Finds what the project's backends lack, and versions that were seen not to work together."""
    too_new = () < _version(machine, "numba-cuda") <= (0, 30, 4) and _version(machine, "numpy") >= (2, 5)
    if too_new and machine.no_gpu is None:  # the simulator needs no compiler
        numba_cuda, numpy = (machine.versions[name] for name in ("numba-cuda", "numpy"))
        text = f"{numba_cuda} compiles no kernel beside NumPy {numpy}, which has no np.row_stack"
        yield Advice(Severity.ERROR, "numba-cuda", text, 'pip install "numpy<2.5"')
    cupys = [name for name in machine.versions if name == "cupy" or name.startswith("cupy-cuda")]
    if len(cupys) > 1:
        remedy = f"uninstall all of them, then install one: pip uninstall {' '.join(cupys)}"
        yield Advice(Severity.ERROR, "cupy", f"{' and '.join(cupys)} overwrite each other's files", remedy)
    if "numba" in machine.versions and "numba-cuda" not in machine.versions:
        text = "numba without numba-cuda: the CUDA target inside Numba is no longer maintained, and not used"
        yield Advice(Severity.WARNING, "numba", text, "pip install numba-cuda")
    if "pycuda" in machine.versions and machine.nvcc is None:
        text = "SourceModule compiles with nvcc, and there is none on PATH"
        remedy = "install the CUDA toolkit, or the wheel nvidia-cuda-nvcc, which is found without PATH"
        yield Advice(Severity.NOTE, "pycuda", text, remedy)
    if () < _version(machine, "pynvml") < (12,):
        text = "pynvml before 12 and nvidia-ml-py both bring a module pynvml: the last one installed wins"
        remedy = "pip uninstall pynvml; pip install -U nvidia-ml-py"
        yield Advice(Severity.WARNING, "nvidia-ml-py", text, remedy)
    for name, (file, lack) in machine.lacks.items():
        if machine.no_gpu is None or BACKENDS[name].simulated_by:  # else nothing would run it here
            missing, _, remedy = lack.partition("; ")
            yield Advice(Severity.WARNING, name, f"{file} uses it, and {missing}", remedy)
    for name, problem in machine.backends.items():
        if problem is not None:
            text = f"the backend cannot be opened: {problem}"
            yield Advice(Severity.ERROR, name, text, "reinstall it, or leave it out with --gpukern-backend")


def _timers(machine: Machine) -> Iterator[Advice]:
    if machine.timer is not None:
        text = f"CUPTI cannot time here ({machine.timer}); events stand in, and read about 3 µs too much"
        remedy = "pip install cupti-python of the driver's CUDA version; detach other profilers"
        yield Advice(Severity.WARNING, "timer", text, remedy)


def _sanitizer(machine: Machine) -> Iterator[Advice]:
    """Checks that `--gpukern-sanitize` can run; a release knows the drivers of its CUDA version."""
    if machine.sanitizer_problem is not None and machine.sanitizer is None:
        text = f"--gpukern-sanitize does not work: {machine.sanitizer_problem}"
        yield Advice(Severity.NOTE, "sanitizer", text)
    elif machine.sanitizer_problem is not None:
        major, minor = machine.cuda or (13, 0)
        remedy = f'pip install "nvidia-cuda-sanitizer-api=={major}.{minor}.*", which is of the driver\'s CUDA'
        text = f"compute-sanitizer {machine.sanitizer}: {machine.sanitizer_problem}"
        yield Advice(Severity.WARNING, "sanitizer", text, remedy)


_SWITCHES = {
    "NUMBA_ENABLE_CUDASIM": "Numba's kernels run in its simulator, on the host: no time means anything",
    "TRITON_INTERPRET": "Triton's kernels run in its interpreter, on the host: a run on a GPU refuses that",
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel: times of the host contain that",
    "CUDA_INJECTION64_PATH": "a profiler in every CUDA program slows them and keeps CUPTI from timing",
    "NVIDIA_TF32_OVERRIDE": "cuBLAS and cuDNN round their operands as it says, whatever a kernel asks for",
    "NUMBA_CUDA_DEBUGINFO": "Numba compiles without optimisation",
    "NUMBA_DISABLE_JIT": "Numba compiles nothing",
    "CUDA_DISABLE_PTX_JIT": "kernels that come as PTX cannot be loaded",
}
"""Environment variable that is neither empty nor 0 → what it does then."""


def _environment(machine: Machine) -> Iterator[Advice]:
    for variable, text in _SWITCHES.items():
        value = machine.environ.get(variable, "")
        if value.strip() not in ("", "0"):
            text = f"{variable}={value}: {text}"
            yield Advice(Severity.WARNING, "environment", text, "unset it where you check or measure")


def _each_gpu(machine: Machine) -> Iterator[Advice]:
    for gpu in machine.gpus:
        subject = f"GPU {gpu.record.index}"
        for level, text, remedy in (*_memory_errors(gpu), *_modes(gpu), *_load(gpu)):
            yield Advice(level, subject, text, remedy.format(index=gpu.record.index))


_Found = tuple[Severity, str, str]


def _memory_errors(gpu: Gpu) -> Iterator[_Found]:
    setup = gpu.setup
    if setup.uncorrected_errors:
        text = f"{setup.uncorrected_errors} uncorrected memory errors since the driver was loaded"
        yield Severity.ERROR, text, "reset the GPU (nvidia-smi -r -i {index}); if they come back, replace it"
    if setup.row_remap_failed:
        yield Severity.ERROR, "broken memory rows could not be replaced", "have the GPU replaced"
    elif setup.row_remap_pending:
        text = "broken memory rows wait to be replaced"
        yield Severity.ERROR, text, "reset the GPU: nvidia-smi -r -i {index}"
    if setup.ecc is not None and setup.ecc != setup.ecc_pending and setup.ecc_pending is not None:
        text = f"ECC is {_on(setup.ecc)} and will be {_on(setup.ecc_pending)} after a reset"
        yield Severity.WARNING, text, "reset it before recording baselines: nvidia-smi -r -i {index}"
    elif setup.ecc is False:
        yield Severity.NOTE, "ECC is off: wrong bits go unseen", "nvidia-smi -e 1 -i {index}, then a reset"


def _modes(gpu: Gpu) -> Iterator[_Found]:
    setup, record = gpu.setup, gpu.record
    if setup.persistence is False:
        text = "persistence mode is off: the driver unloads between processes, with clocks and ECC counters"
        yield Severity.WARNING, text, "run nvidia-persistenced, or nvidia-smi -pm 1 -i {index}"
    if setup.compute_mode == "prohibited":
        yield Severity.ERROR, "compute mode PROHIBITED: no CUDA program may run", "nvidia-smi -c 0 -i {index}"
    elif setup.compute_mode in ("exclusive_process", "exclusive_thread"):
        mode = setup.compute_mode.upper()
        text = f"compute mode {mode}: the fresh sessions that confirm a slowdown cannot run"
        yield Severity.WARNING, text, "nvidia-smi -c 0 -i {index}"
    if setup.mig_pending is not None and setup.mig_pending != record.mig_enabled:
        text = f"MIG is {_on(record.mig_enabled)} and will be {_on(setup.mig_pending)} after a reset"
        yield Severity.WARNING, text, "reset it: nvidia-smi -r -i {index}"
    if record.mig_enabled and not record.mig_instances:
        remedy = "nvidia-smi mig -cgi PROFILE -C -i {index}, or nvidia-smi -mig 0 -i {index}"
        yield Severity.ERROR, "MIG is on and there is no instance, so that nothing can run", remedy
    limit, default = gpu.limits.power_w, setup.default_power_w
    if limit is not None and default is not None and limit < default:
        text = f"the power limit is {limit:g} W, below its own {default:g} W: heavy kernels clock down"
        yield Severity.NOTE, text, "nvidia-smi -pl, if that was not meant; records keep the limit"


def _load(gpu: Gpu) -> Iterator[_Found]:
    held = [name for name in gpu.state.clock_events or () if name in INVALIDATING]
    if held:
        text = f"clocks are held down now: {', '.join(held)}"
        yield Severity.WARNING, text, "look after cooling and power; times taken now are INVALID"
    if gpu.processes:
        named = ", ".join(map(str, gpu.processes))
        remedy = "end them if a failed run left them; a measurement shares the GPU with them"
        yield Severity.WARNING, f"in use by {named}", remedy
    elif (gpu.state.memory_used_bytes or 0) > _UNEXPLAINED_BYTES:
        used = (gpu.state.memory_used_bytes or 0) // _MIB
        text = f"{used} MiB are in use, and NVML lists no process: the process may run in another container"
        yield Severity.WARNING, text, "look on the host: nvidia-smi there, or fuser -v /dev/nvidia{index}"


def _lock(machine: Machine) -> Iterator[Advice]:
    if machine.lock is not None:
        remedy = "set GPUKERN_LOCK_DIR to a folder that everybody who measures on this machine can write to"
        yield Advice(Severity.WARNING, "lock", f"measurements are not kept apart: {machine.lock}", remedy)


def _version(machine: Machine, name: str) -> tuple[int, ...]:
    """Returns the numbers of a version; none where it is not installed."""
    return tuple(map(int, re.findall(r"\d+", machine.versions.get(name, ""))))


def _on(value: bool) -> str:
    return "on" if value else "off"
