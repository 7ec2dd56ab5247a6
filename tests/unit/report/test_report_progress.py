"""The line about how far a run is."""

from pytest_gpukern.report.progress import telling_now_and_then


def test_how_far_a_run_is_is_told_every_thirty_seconds_and_no_more():
    told, now = [], [100.0]
    progress = telling_now_and_then(told.append, "tests", clock=lambda: now[0])
    for at, finished in ((129.9, 1), (130.0, 2), (159.0, 3), (160.0, 98)):
        now[0] = at
        progress(finished, 98)
    assert told == ["tests: 2 of 98, 30 s", "tests: 98 of 98, 1 min 0 s"]
