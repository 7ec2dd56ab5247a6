"""Tests asking the CUDA driver library through ctypes, on a replacement for libcuda.so.1 compiled here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpukern import gpu as device_package
from pytest_gpukern.gpu.libcuda import CudaError, LibCuda

ROOT = Path(device_package.__file__).parents[2]
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C compiler")

# Two devices; any CUDA_VISIBLE_DEVICES shows one.
SOURCE = r"""
#include <stdlib.h>
static int ready = 0;
int cuInit(unsigned flags) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (getenv("STUB_BROKEN")) return 999;
    if (visible && !*visible) return 100;
    ready = 1; return 0;
}
static int current = 0, active = 0;
void make(int device) { active = 1 + device; }
void use(int some) { current = some; }
int cuCtxGetCurrent(void **context) { *context = current ? &current : 0; return ready ? 0 : 3; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is) {
    *flags = 0; *is = device + 1 == active; return ready ? 0 : 3;
}
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!ready) return 3;
    *count = visible ? 1 : 2; return 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = 16 * device + i;
    return 0;
}
int cuGetErrorName(int error, const char **name) {
    *name = error == 999 ? "CUDA_ERROR_UNKNOWN" : 0;
    return error == 999 ? 0 : 1;
}
"""
ZERO, ONE = "00010203-0405-0607-0809-0a0b0c0d0e0f", "10111213-1415-1617-1819-1a1b1c1d1e1f"


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """An environment whose libcuda.so.1 is the stand-in."""
    folder = tmp_path_factory.mktemp("libcuda")
    (folder / "stub.c").write_text(SOURCE)
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([str(COMPILER), *library, str(folder / "stub.c")], check=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    return {**kept, "LD_LIBRARY_PATH": str(folder)}


def printed(script, environ):
    """What a process prints that asks the stand-in."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@needs_compiler
def test_a_refusal_is_named_with_call_and_code(environ):
    script = """
from pytest_gpukern.gpu.libcuda import CudaError, LibCuda
try:
    LibCuda().uuids()
except CudaError as error:
    print(error)
"""
    assert printed(script, {**environ, "STUB_BROKEN": "1"}) == "cuInit failed with CUDA_ERROR_UNKNOWN (999)"


@needs_compiler
def test_cuda_is_asked_whether_it_is_initialised_and_has_a_context_without_being_touched(environ):
    script = """
import json
from pytest_gpukern.gpu.libcuda import LibCuda, load_library
cuda, states = LibCuda(), []
def look():
    states.append([cuda.is_initialized(), cuda.has_context()])
look()
with open("/proc/self/maps") as maps: assert "libcuda" not in maps.read()
library = load_library()
look()
uuids = cuda.uuids()
look()
library.use(1)  # a context in this thread
look()
library.use(0)
library.make(1)  # the primary context of a device
look()
print(json.dumps([uuids, states]))
"""
    expected = [[False, False]] * 2 + [[True, False]] + [[True, True]] * 2
    assert json.loads(printed(script, environ)) == [[ZERO, ONE], expected]


def test_a_missing_library_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr("pytest_gpukern.gpu.libcuda.LIBRARY", "libcuda-that-nobody-has.so.1")
    with pytest.raises(CudaError, match=r"^CUDA library missing \(libcuda-that-nobody-has\.so\.1"):
        LibCuda().uuids()
