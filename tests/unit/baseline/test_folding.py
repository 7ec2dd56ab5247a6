"""Checks that what results share stands once in a file, and that each is whole when it is read."""

from __future__ import annotations

import msgspec
from any_value import values_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_results import FINGERPRINT, measured, result
from msgspec import structs

from pytest_gpukern.baseline.codec import Processes, folded_record, unfolded, whole_record
from pytest_gpukern.baseline.record import Epoch, Record
from pytest_gpukern.values.result import Result

sessions = values_of(Result).map(lambda each: structs.replace(each, nodeid="n"))
"""Results of one test, which mostly come from other processes."""


def through_json(value):
    return msgspec.json.decode(msgspec.json.encode(value))


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(sessions, min_size=1, max_size=3), st.data())
def test_every_result_is_whole_again_whatever_it_shares(results, data):
    like = data.draw(st.lists(st.sampled_from(results), min_size=1, max_size=4))
    processes = Processes()
    alone = [processes.folded(each) for each in like]
    record = Record("n", (Epoch("2026-11-20T10:00:00Z", tuple(like)),))
    together = through_json(folded_record(record, processes))
    table = through_json(processes.table())
    assert [msgspec.convert(unfolded(each, table), Result) for each in through_json(alone)] == like
    assert msgspec.convert(whole_record(together, table), Record) == record


def test_what_is_shared_or_as_by_default_is_not_written_again():
    first = result("cupy.exp", measured(), session="a", fingerprint=FINGERPRINT)
    second = structs.replace(first, session="b", errors={})
    processes = Processes()
    record = Record(first.nodeid, (Epoch("2026-11-20T10:00:00Z", (first, second)),))
    (folded,) = folded_record(record, processes)["epochs"]
    assert folded["shared"].keys() >= {"case", "errors"}
    assert [each.keys() for each in folded["sessions"]] == [
        {"measurements", "session"},
        {"measurements", "session", "errors"},
    ]
    assert all(each.keys() == {"fingerprint"} for each in processes.table().values())
