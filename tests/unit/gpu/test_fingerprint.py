"""Tests the fingerprint and the header of a run."""

from __future__ import annotations

import os

import numpy as np
import pytest
from fake_nvml import UUIDS, FakeNvml
from msgspec import structs
from repositories import Repository

from pytest_gpukern.gpu.fingerprint import (
    cpu_model,
    describe_pools,
    header_lines,
    take_fingerprint,
    take_provenance,
)
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.selection import visible_devices
from pytest_gpukern.values.fingerprint import Provenance

NVML = FakeNvml()
DEVICE = visible_devices(NVML, {})[0]


@pytest.fixture(scope="module")
def fingerprint():
    return take_fingerprint(DEVICE, NVML)


def test_it_holds_device_driver_and_limits(fingerprint):
    names = ("NVIDIA H200", UUIDS[0], "nvidia-h200")
    assert (fingerprint.device_name, fingerprint.device_uuid, fingerprint.device_model_key) == names
    assert fingerprint.compute_capability == (9, 0)
    assert (fingerprint.driver_version, fingerprint.cuda_driver_version) == ("580.159.03", "13.0")
    assert fingerprint.power_limit_w == 700.0
    assert (fingerprint.max_sm_clock_mhz, fingerprint.max_memory_clock_mhz) == (1980, 3201)
    assert fingerprint.is_simulated is False


def test_it_holds_the_installed_libraries_and_only_those(fingerprint):
    assert fingerprint.libraries["numpy"] == np.__version__
    assert fingerprint.libraries["pytest"] == pytest.__version__
    assert "cupy-cuda99x" not in fingerprint.libraries
    assert all(fingerprint.libraries.values())


def test_a_run_on_the_host_alone_has_a_fingerprint_without_a_device_and_a_key_that_is_safe_in_a_file_name():
    fingerprint = take_fingerprint(None, None)
    named = structs.replace(fingerprint, cpu_model="Intel(R) Xeon(R) Platinum 8480+ @ 2.0GHz")
    assert named.model_key(on_gpu=False) == "intel-xeon-platinum-8480+-2_0ghz"
    assert fingerprint.device_name is None
    assert fingerprint.driver_version is None
    assert fingerprint.cpu_model
    assert fingerprint.cpu_count >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC  9654 96-Core\n", "AMD EPYC 9654 96-Core"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "implementer 0x41 part 0xd4f"),
        ("model name\t: \nCPU part\t: 0xd4f\n", "part 0xd4f"),
    ],
)
def test_the_processor_is_named_as_far_as_linux_tells(tmp_path, cpuinfo, model):
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert model in cpu_model(path)


def pool(**changes):
    usual = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.30", "num_threads": 16}
    return {**usual, "filepath": "/x/numpy.libs/libscipy_openblas.so", **changes}


def test_numpys_blas_is_named_with_version_and_threads_also_among_several():
    assert describe_pools([pool()]) == "OpenBLAS 0.3.30, 16 threads"
    assert describe_pools([pool(internal_api="mkl", version=None, num_threads=1)]) == "MKL, 1 thread"
    foreign = pool(internal_api="mkl", filepath="/x/torch/lib/libmkl.so")
    openmp = pool(user_api="openmp")
    assert describe_pools([openmp, foreign, pool()]) == "OpenBLAS 0.3.30, 16 threads"
    assert describe_pools([openmp]) == "unknown BLAS"


def test_the_header_names_device_driver_simulator_libraries_and_blas(fingerprint):
    lines = header_lines(DEVICE, structs.replace(fingerprint, blas="OpenBLAS 0.3.30, 16 threads"))
    assert len(lines) == 5
    assert lines[0] == f"gpukern device: 0: NVIDIA H200, compute capability 9.0, 140.0 GiB, {UUIDS[0]}"
    assert lines[1] == "gpukern driver: 580.159.03, CUDA 13.0, power limit 700 W, SM clock up to 1980 MHz"
    assert lines[2] == "gpukern simulator: off"
    assert f"numpy {np.__version__}" in lines[3]
    assert lines[4].endswith("BLAS behind NumPy: OpenBLAS 0.3.30, 16 threads")


@pytest.mark.parametrize(
    ("device", "shown", "simulator"),
    [
        (Device.simulated(), "CUDA simulator: correctness only, never speed", "on (no driver)"),
        (None, "none (no driver)", "off"),
    ],
)
def test_the_header_says_why_the_simulator_is_on_or_why_there_is_no_device(device, shown, simulator):
    lines = header_lines(device, take_fingerprint(device, None), "no driver")
    assert lines[:2] == [f"gpukern device: {shown}", f"gpukern simulator: {simulator}"]


# --- the state of the code ------------------------------------------------------------------------

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "me/kernels",
    "GITHUB_RUN_ID": "7",
    "GITHUB_REF_NAME": "main",
}


def test_commit_branch_and_changes_are_known_of_a_repository(tmp_path):
    repository = Repository(tmp_path)
    commit = repository.commit(kernel="1")
    repository.write(untracked="")
    assert take_provenance(tmp_path, PATH) == Provenance(commit, False, "main")
    repository.write(kernel="2")
    assert take_provenance(tmp_path, {**PATH, "GIT_DIR": "/nowhere"}) == Provenance(commit, True, "main")
    repository.git("checkout", "-q", "--detach", "-f")
    assert take_provenance(tmp_path, PATH) == Provenance(commit, False, None)
    page = "https://github.com/me/kernels/actions/runs/7"
    assert take_provenance(tmp_path, {**PATH, **GITHUB}) == Provenance(commit, False, "main", page)


def test_without_git_a_repository_or_a_commit_nothing_is_made_up(tmp_path):
    assert (
        take_provenance(tmp_path, {**PATH, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}) == Provenance()
    )
    assert take_provenance(tmp_path, {"PATH": ""}) == Provenance()
    assert take_provenance(tmp_path / "gone", PATH) == Provenance()


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("https://gitlab.com/me/kernels/-/jobs/7", "https://gitlab.com/me/kernels/-/jobs/7"),
        ("https://me:token@ci.example:8080/job/7?token=x#y", "https://ci.example:8080/job/7"),
        ("file:///home/me/7", None),
        ("https://[", None),
        ("", None),
    ],
)
def test_the_page_of_ci_has_no_user_and_no_token(tmp_path, page, shown):
    assert take_provenance(tmp_path / "gone", {"CI_JOB_URL": page}).ci_url == shown


PATH = {"PATH": os.environ["PATH"]}
