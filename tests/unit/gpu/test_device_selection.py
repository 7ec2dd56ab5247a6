"""--gpukern-device: one device by position, UUID or name, and never one of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_nvml import MIG_UUIDS, UUIDS, FakeNvml, gpu, split_gpu
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.selection import select, visible_devices

if TYPE_CHECKING:
    from pytest_gpukern.gpu.model import Device

TWINS = visible_devices(FakeNvml((gpu(0), gpu(1))), {})
MIXED = visible_devices(
    FakeNvml((gpu(0, "NVIDIA GeForce RTX 4090"), gpu(1, "NVIDIA GeForce RTX 4090 D"), gpu(2, "NVIDIA T400"))),
    {},
)


def test_without_a_choice_the_first_visible_device_is_taken() -> None:
    assert select(None, TWINS) is TWINS[0]


@pytest.mark.parametrize(
    ("spec", "position"),
    [
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
def test_a_device_is_named_by_position_uuid_or_name(spec: str, position: int) -> None:
    assert select(spec, MIXED) is MIXED[position]


def test_a_position_counts_in_the_visible_list_and_not_in_nvml() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1,0"}
    assert select("0", visible_devices(FakeNvml((gpu(0), gpu(1))), environ)).uuid == UUIDS[1]


@pytest.mark.parametrize("spec", ["3", "42", "-1", "A100", "GPU-123", "gpu-", "mig-", "", " "])
def test_a_choice_that_names_no_device_shows_it_the_devices_and_valid_spellings(spec: str) -> None:
    with pytest.raises(DeviceError) as caught:
        select(spec, MIXED)
    message = str(caught.value)
    assert f"--gpukern-device={spec!r} names no visible device" in message
    for position, device in enumerate(MIXED):
        assert f"{position}: {device.name}, {device.uuid}" in message
    assert "--gpukern-device=0 or --gpukern-device=GPU-9942190a" in message


def test_a_number_out_of_range_does_not_turn_into_a_part_of_a_name() -> None:
    with pytest.raises(DeviceError, match="names no visible device"):
        select("40", MIXED)


def test_two_cards_of_one_name_are_told_apart_by_uuid_only() -> None:
    with pytest.raises(DeviceError) as caught:
        select("h200", TWINS)
    message = str(caught.value)
    assert "names 2 devices" in message
    assert "use a UUID" in message
    assert all(uuid in message for uuid in UUIDS[:2])


def test_a_part_of_two_different_names_is_ambiguous() -> None:
    with pytest.raises(DeviceError, match=r"names 2 devices\.\n"):
        select("RTX", MIXED)


def test_what_is_the_start_of_one_uuid_and_part_of_another_name_is_ambiguous() -> None:
    devices = visible_devices(FakeNvml((gpu(0, uuid="GPU-a100" + UUIDS[0][8:]), gpu(1, "NVIDIA A100"))), {})
    with pytest.raises(DeviceError, match="names 2 devices"):
        select("a100", devices)


def test_a_mig_instance_is_selected_by_its_uuid_or_profile() -> None:
    devices = visible_devices(FakeNvml((split_gpu(0, instances=1), gpu(1))), {})
    assert select(MIG_UUIDS[0], devices).mig_profile == "1g.18gb"
    assert select("1g.18gb", devices).uuid == MIG_UUIDS[0]


def test_without_visible_devices_any_choice_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"--gpukern-device=0: no GPU is visible"):
        select("0", ())
    with pytest.raises(DeviceError, match=r"^no GPU is visible"):
        select(None, ())


def outcome(spec: str) -> Device | str:
    try:
        return select(spec, MIXED)
    except DeviceError as error:
        return str(error)


PARTS = st.tuples(
    st.sampled_from([text for device in MIXED for text in (device.name, device.uuid)]), st.slices(36)
)


@given(st.one_of(st.text(max_size=12), PARTS.map(lambda part: part[0][part[1]])))
def test_whatever_is_asked_for_the_answer_is_the_only_device_that_it_describes_or_an_error(spec: str) -> None:
    found = outcome(spec)
    if isinstance(found, str):
        assert f"--gpukern-device={spec!r}" in found
        return
    wanted = spec.strip().lower()
    described = [device for device in MIXED if wanted in device.name.lower() or wanted in device.uuid.lower()]
    assert found in described or MIXED[int(wanted)] is found
    starts = [device for device in MIXED if device.uuid.lower().startswith(wanted)]
    assert not (wanted.startswith("gpu-") and starts != [found])
