"""Tests which devices are visible, which one is chosen, and pinning it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_nvml import MIG_UUIDS, UUIDS, FakeCuda, FakeNvml, gpu, split_gpu
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.gpu import selection
from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.libcuda import CudaError, bare_uuid
from pytest_gpukern.gpu.selection import missing_gpu_reason, pin, select, visible_devices

TWO = FakeNvml((gpu(0), gpu(1)))
THREE = FakeNvml((gpu(0), gpu(1), gpu(2)))
TWO_MODELS = FakeNvml((gpu(0, "NVIDIA T400", compute_capability=(7, 5)), gpu(1)))
SPLIT = FakeNvml((split_gpu(0), gpu(1)))


def uuids(nvml, value, **environ):
    if value is not None:
        environ["CUDA_VISIBLE_DEVICES"] = value
    return [device.uuid for device in visible_devices(nvml, environ)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2]),
        ("0", [0]),
        ("2,1", [2, 1]),
        (" 1 , 0", [1, 0]),
        ("+1", [1]),
        ("0,", [0]),
        ("0,2,-1,1", [0, 2]),
        (UUIDS[1], [1]),
        ("GPU-9e", [1]),
        ("GPU-e4,GPU-99", [2, 0]),
    ],
)
def test_a_valid_value_shows_its_devices_in_its_order(value, expected):
    assert uuids(THREE, value) == [UUIDS[index] for index in expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [*MIG_UUIDS, UUIDS[1]]),
        ("0", [MIG_UUIDS[0]]),
        (UUIDS[0], [MIG_UUIDS[0]]),
        (MIG_UUIDS[1], [MIG_UUIDS[1]]),
    ],
)
def test_a_split_gpu_is_its_instances_and_if_it_is_named_the_first_of_them(value, expected):
    assert uuids(SPLIT, value) == expected


@pytest.mark.parametrize(
    ("nvml", "value", "message"),
    [
        (SPLIT, ",".join(MIG_UUIDS), "shows a process only one instance"),
        (FakeNvml((split_gpu(0, instances=0),)), "0", "in MIG mode without any MIG instance"),
    ],
)
def test_instances_that_cuda_would_hide_are_an_error(nvml, value, message):
    with pytest.raises(DeviceError, match=message):
        uuids(nvml, value)


@pytest.mark.parametrize("value", ["", "  ", "-1", "-1,0", "NoDevFiles"])
def test_a_value_that_hides_everything_on_purpose_is_no_error(value):
    assert uuids(TWO, value) == []


NONE = "names none of the devices below"


@pytest.mark.parametrize(
    ("value", "entry", "problem"),
    [
        *((name, name, NONE) for name in ("10DE 1B06 63933842", "7", "1gpu2", "MIG-12345678", "²")),
        *((name, name, NONE) for name in ("GPU-", "GPU-0000", "gpu-9942")),
        ("0,5,1", "5", NONE),
        ("0,-2", "-2", NONE),
        ("0,,1", "", NONE),
        ("0,1,0", "0", "same device as '0'"),
        (f"{UUIDS[0]},GPU-9942", "GPU-9942", "same device"),
        ("GPU-9", "GPU-9", "names 2 of the devices below"),
        ("0,GPU-9e8d", "GPU-9e8d", "another form"),
        ("GPU-9e8d,0", "0", "another form"),
    ],
)
def test_an_error_shows_value_entry_devices_and_valid_spellings(value, entry, problem):
    with pytest.raises(DeviceError) as caught:
        uuids(TWO, value)
    message = str(caught.value)
    assert f"CUDA_VISIBLE_DEVICES={value!r}: the entry {entry!r} " in message
    assert problem in message
    for uuid in UUIDS[:2]:
        assert f"NVIDIA H200, {uuid}" in message
    assert "CUDA_VISIBLE_DEVICES=0 or CUDA_VISIBLE_DEVICES=GPU-9942190a\n" in message


def shown(value):
    try:
        return uuids(THREE, value)
    except DeviceError as error:
        return str(error)


@given(st.text(alphabet="0123456789-,+ GPUMIGabcdef/"))
def test_any_value_gives_distinct_devices_nothing_on_purpose_or_an_error(value):
    found = shown(value)
    if isinstance(found, str):
        assert f"CUDA_VISIBLE_DEVICES={value!r}" in found
        return
    assert len(set(found)) == len(found)
    assert found or value.split(",")[0].strip() in {"", "-1"}


def test_an_index_among_different_models_needs_the_order_of_nvidia_smi():
    assert uuids(TWO_MODELS, "0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [UUIDS[0]]
    assert uuids(TWO_MODELS, UUIDS[1]) == [UUIDS[1]]
    with pytest.raises(DeviceError, match=rf"Name them by UUID: CUDA_VISIBLE_DEVICES={UUIDS[0]}"):
        uuids(TWO_MODELS, "0")


def reason(nvml, cuda=None, **environ):
    def open_nvml():
        if isinstance(nvml, NvmlUnavailable):
            raise nvml
        return nvml

    def load_library():
        if cuda is not None:
            raise cuda

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "open_nvml", open_nvml)
        patch.setattr(selection, "load_library", load_library)
        return missing_gpu_reason(environ)


def test_a_reason_says_what_is_missing_or_hidden_and_none_is_given_where_a_gpu_is_visible():
    nvml = FakeNvml()
    assert reason(nvml) is None
    assert nvml.closed
    for value in ("", "-1"):
        hidden = f"CUDA_VISIBLE_DEVICES={value!r} hides all of 1 GPU"
        assert reason(FakeNvml(), CUDA_VISIBLE_DEVICES=value) == hidden
    missing = "CUDA library missing (x)"
    assert reason(FakeNvml(), CudaError(missing)) == f"NVML lists 1 GPU, but {missing}"
    assert reason(NvmlUnavailable("no NVML")) == "no NVML; the CUDA library itself is there"


def test_a_malformed_value_is_an_error_and_no_reason_to_go_without_a_gpu():
    nvml = FakeNvml()
    with pytest.raises(DeviceError, match="10DE"):
        reason(nvml, CUDA_VISIBLE_DEVICES="10DE 1B06 63933842")
    assert nvml.closed


TWINS = FIRST, SECOND = visible_devices(TWO, {})
MIXED = visible_devices(
    FakeNvml((gpu(0, "NVIDIA GeForce RTX 4090"), gpu(1, "NVIDIA GeForce RTX 4090 D"), gpu(2, "NVIDIA T400"))),
    {},
)


@pytest.mark.parametrize(
    ("spec", "position"),
    [
        (None, 0),
        ("0", 0),
        ("1", 1),
        (UUIDS[1], 1),
        (UUIDS[1].upper(), 1),
        ("GPU-9e8d", 1),
        ("9e8d35e3", 1),
        ("9E8D", 1),
        (" e429 ", 2),
        ("t400", 2),
        ("4090 D", 1),
        ("NVIDIA GeForce RTX 4090", 0),
    ],
)
def test_a_device_is_named_by_position_uuid_or_name(spec, position):
    assert select(spec, MIXED) is MIXED[position]


@pytest.mark.parametrize("spec", ["3", "40", "42", "-1", "A100", "GPU-123", "gpu-", "mig-", "", " "])
def test_a_choice_that_names_no_device_shows_it_the_devices_and_valid_spellings(spec):
    with pytest.raises(DeviceError) as caught:
        select(spec, MIXED)
    message = str(caught.value)
    assert f"--gpukern-device={spec!r} names no visible device" in message
    for position, device in enumerate(MIXED):
        assert f"{position}: {device.name}, {device.uuid}" in message
    assert "--gpukern-device=0 or --gpukern-device=GPU-9942190a" in message


def test_two_cards_of_one_name_are_told_apart_by_uuid_only():
    with pytest.raises(DeviceError) as caught:
        select("h200", TWINS)
    message = str(caught.value)
    assert "names 2 devices" in message
    assert "use a UUID" in message
    assert all(uuid in message for uuid in UUIDS[:2])


def test_a_mig_instance_is_selected_by_its_uuid_or_profile():
    devices = visible_devices(FakeNvml((split_gpu(0, instances=1), gpu(1))), {})
    assert select(MIG_UUIDS[0], devices).mig_profile == "1g.18gb"
    assert select("1g.18gb", devices).uuid == MIG_UUIDS[0]


def test_without_visible_devices_any_choice_is_an_error():
    with pytest.raises(DeviceError, match=r"--gpukern-device=0: no GPU is visible"):
        select("0", ())
    with pytest.raises(DeviceError, match=r"^no GPU is visible"):
        select(None, ())


def seen(*uuids):
    return tuple(map(bare_uuid, uuids))


@pytest.mark.parametrize("device", [SECOND, visible_devices(SPLIT, {})[0]], ids=["GPU", "MIG"])
def test_a_pinned_device_is_the_only_one_by_uuid_until_the_variables_are_put_back(device):
    environ = {"CUDA_VISIBLE_DEVICES": "1,0", "HOME": "x"}
    with pin(replace(device, cuda=FakeCuda()), environ):
        assert environ == {
            "CUDA_VISIBLE_DEVICES": device.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "HOME": "x",
        }
    assert environ == {"CUDA_VISIBLE_DEVICES": "1,0", "HOME": "x"}


def test_a_cuda_initialised_for_another_device_is_an_error_that_names_the_remedy():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    cuda = FakeCuda(initialized=True, inside=seen(UUIDS[0], UUIDS[1]))
    with pytest.raises(DeviceError) as caught:
        pin(replace(SECOND, cuda=cuda), environ)
    message = str(caught.value)
    assert f"its device 0 is the one with the UUID {bare_uuid(UUIDS[0])}" in message
    assert f"Start with CUDA_VISIBLE_DEVICES={UUIDS[1]}" in message
    assert environ == {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(DeviceError, match="it shows no device"):
        pin(replace(FIRST, cuda=FakeCuda(initialized=True)), {})


def test_a_cuda_initialised_for_this_device_first_is_accepted_and_its_children_are_pinned():
    environ: dict[str, str] = {}
    cuda = FakeCuda(initialized=True, inside=seen(UUIDS[0], UUIDS[1]))
    pin(replace(FIRST, cuda=cuda), environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
