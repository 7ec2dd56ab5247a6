"""Tests that ceilings are measured once a device, driver and host, stored, and compared with times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from made_up_results import FINGERPRINT
from msgspec import structs
from mutations import damaged

from pytest_gpukern.gpu.ceiling_kernels import Measured
from pytest_gpukern.measure import ceilings
from pytest_gpukern.measure.ceilings import Ceilings, default_cache_dir, load_or_measure
from pytest_gpukern.values.result import HostCopy

H200 = {
    "device_copy_bytes_per_s": 4.29e12,
    "pinned_to_device_bytes_per_s": 55e9,
    "device_to_pinned_bytes_per_s": 54e9,
    "pageable_to_device_bytes_per_s": 10e9,
    "device_to_pageable_bytes_per_s": 20e9,
    "float16_flop_per_s": 132e12,
    "float32_flop_per_s": 66e12,
    "float64_flop_per_s": 33e12,
    "int32_op_per_s": 32e12,
}
CEILINGS = Ceilings(**H200)


class Measuring:
    """Measures what it is told, counts how often, and hears the warnings."""

    def __init__(self, values=H200, complaints=()):
        self.measured = Measured(values, tuple(complaints))
        self.count = 0
        self.warnings = []

    def __call__(self):
        self.count += 1
        return self.measured

    def load(self, folder, fingerprint=FINGERPRINT):
        with pytest.MonkeyPatch.context() as patch:
            if folder is not None:
                patch.setattr(ceilings, "default_cache_dir", lambda: folder)
            return load_or_measure(fingerprint, self.warnings.append, self)


def stored(folder):
    (path,) = folder.iterdir()
    return path


# measured once


def test_what_was_measured_is_read_the_next_time(tmp_path):
    partly = {name: value for name, value in H200.items() if name != "float16_flop_per_s"}
    first, second = Measuring(partly), Measuring({})
    assert first.load(tmp_path / "new" / "folder") == Ceilings(**partly)
    assert second.load(tmp_path / "new" / "folder") == Ceilings(**partly)
    assert (first.count, second.count) == (1, 0)
    assert first.warnings == second.warnings == []


CHANGES = {
    "device_uuid": "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
    "device_model_key": "nvidia-h200-mig-1g_18gb",
    "mig_profile": "1g.18gb",
    "driver_version": "590.1",
    "power_limit_w": 500.0,
    "max_sm_clock_mhz": 1700,
    "cpu_model": "Another",
}


def test_a_new_driver_or_whatever_else_matters_measures_anew_and_keeps_the_old(tmp_path):
    Measuring().load(tmp_path)
    for number, (field, value) in enumerate(CHANGES.items(), start=2):
        new = Measuring({**H200, "float32_flop_per_s": 1e12})
        assert new.load(tmp_path, structs.replace(FINGERPRINT, **{field: value})) != CEILINGS, field
        assert len(list(tmp_path.iterdir())) == number
    assert Measuring({}).load(tmp_path) == CEILINGS


# files that cannot be used


def test_a_damaged_file_is_said_measured_again_and_mended(tmp_path):
    Measuring().load(tmp_path)
    path = stored(tmp_path)
    sound, read = path.read_bytes(), []

    @given(damaged([sound]))
    @example(b"{}")
    @example(sound.replace(b"{", b'{"key": {"device_uuid": "another"}, ', 1))
    def is_used_or_measured_again(content):
        path.write_bytes(content)
        measuring = Measuring()
        found = measuring.load(tmp_path)
        if not measuring.count:
            read.append(found)
            assert not measuring.warnings
            assert all(value is None or value > 0 for value in structs.astuple(found))
            return
        (warning,) = measuring.warnings
        assert warning.isprintable()
        for words in (str(path), "cannot be used", "measured again"):
            assert words in warning
        assert found == CEILINGS == Measuring({}).load(tmp_path)

    is_used_or_measured_again()
    assert read
    path.unlink()
    path.mkdir()
    measuring = Measuring()
    assert measuring.load(tmp_path) == CEILINGS
    assert "cannot be used" in measuring.warnings[0]


# folders that cannot be written


@pytest.fixture(params=["below a file", "read-only file", "no home"])
def unwritable(request, tmp_path, monkeypatch):
    """A cache folder in which nothing can be stored."""
    if request.param == "below a file":
        (tmp_path / "file").touch()
        return tmp_path / "file" / "folder"
    if request.param == "read-only file":  # which stops root as well
        Measuring().load(tmp_path)
        stored(tmp_path).write_text("damaged")
        stored(tmp_path).chmod(0o444)
        return tmp_path
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    return None


def test_where_nothing_can_be_stored_that_is_said(unwritable):
    measuring = Measuring()
    assert measuring.load(unwritable) == CEILINGS
    assert "will be measured again by the next run" in measuring.warnings[-1]
    assert "set XDG_CACHE_HOME" in measuring.warnings[-1]
    assert sum("are not stored" in warning for warning in measuring.warnings) == 1


def test_what_could_not_be_measured_is_reported_and_tried_again_by_the_next_process(tmp_path):
    measuring = Measuring(complaints=["the ceiling of copies could not be measured: no memory"])
    measuring.load(tmp_path)
    assert measuring.warnings == ["the ceiling of copies could not be measured: no memory"]
    measuring.load(tmp_path)
    assert measuring.count == 2


# where the files are


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("/somewhere", "/somewhere/pytest-gpukern"), ("relative", None), ("", None), (None, None)],
)
def test_files_are_in_the_users_cache_folder(monkeypatch, variable, expected):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/user"))
    assert default_cache_dir() == Path(expected or "/home/user/.cache/pytest-gpukern")


# shares


@pytest.mark.parametrize(
    ("known", "traffic_bytes", "ns", "cache", "share"),
    [
        (CEILINGS, 4.29e9, 1e6, "cold", 1.0),
        (CEILINGS, 4.29e9, 2e6, "cold", 0.5),
        (CEILINGS, 4.29e3, 0.5, "cold", 2.0),
        (CEILINGS, 4.29e9, 1e6, "hot", None),
        *((CEILINGS, amount, ns, "cold", None) for amount in (None, 0) for ns in (1e6, 0.0, float("nan"))),
        (CEILINGS, 1e9, 0.0, "cold", None),
        (Ceilings(), 1e9, 1e6, "cold", None),
    ],
)
def test_a_cold_kernel_is_compared_with_the_copy_and_a_hot_one_with_nothing(
    known, traffic_bytes, ns, cache, share
):
    found = known.bandwidth_share(traffic_bytes, ns, cache)
    assert found is None if share is None else found == pytest.approx(share)


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        ("float16", 132e12),
        ("float32", 66e12),
        (np.float32, 66e12),
        (np.dtype("<f8"), 33e12),
        ("complex64", 66e12),
        ("complex128", 33e12),
        ("int32", 32e12),
        ("uint32", 32e12),
        *((dtype, None) for dtype in ("int64", "int8", "bool", "none of ours", None)),
    ],
)
def test_operations_are_compared_with_the_rate_of_their_dtype(dtype, rate):
    found = CEILINGS.compute_share((rate or 1e12) / 1e3, 2e6, dtype)
    assert found is None if rate is None else found == pytest.approx(0.5)
    assert CEILINGS.compute_share(0, 1e6, dtype) is Ceilings().compute_share(1e9, 1e6, dtype) is None


IN, OUT, PINNED_IN, PINNED_OUT = (
    HostCopy(direction, memory) for memory in ("pageable", "pinned") for direction in ("HtoD", "DtoH")
)
ONE_WAY = Ceilings(pageable_to_device_bytes_per_s=10e9)


@pytest.mark.parametrize(
    ("known", "copies", "copies_ms"),
    [
        (CEILINGS, [(IN, 10e6)], 1.0),
        (CEILINGS, [(OUT, 20e6)], 1.0),
        (CEILINGS, [(IN, 10e6), (OUT, 20e6)], 2.0),
        (CEILINGS, [(PINNED_IN, 55e6), (PINNED_OUT, 108e6)], 3.0),
        # a direction without copies needs no ceiling
        (ONE_WAY, [(IN, 10e6), (OUT, 0)], 1.0),
        (ONE_WAY, [(IN, 10e6), (OUT, 1)], None),
        (ONE_WAY, [(IN, 0)], None),
        (ONE_WAY, [], None),
        (CEILINGS, [(HostCopy("HtoD", "managed"), 1e9)], None),
    ],
)
def test_a_transfer_is_compared_with_its_copies_one_after_the_other(known, copies, copies_ms):
    share = known.host_copy_share(copies, 4e6)
    assert share == (None if copies_ms is None else pytest.approx(copies_ms / 4))


def test_copies_that_overlapped_are_compared_with_both_directions_at_once():
    copies = [(PINNED_IN, 55e6), (PINNED_OUT, 108e6)]
    assert CEILINGS.host_copy_share(copies, 2.5e6) == pytest.approx(2.0 / 2.5), "the longer direction"
    at_once = structs.replace(CEILINGS, duplex_pinned_bytes_per_s=70e9)
    assert at_once.host_copy_share(copies, 2.5e6) == pytest.approx(163 / 70 / 2.5)
    assert at_once.host_copy_share([(IN, 10e6), (OUT, 20e6)], 1.5e6) == pytest.approx(1 / 1.5)
