"""Times that nobody took: new measurements and recorded sessions of one case, and of two revisions."""

from __future__ import annotations

import math

import made_up_results as made_up
from msgspec import structs

from pytest_gpukern.baseline.record import Epoch, Record
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.spread import SharedSpread
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Measurement, Result, Summary

HERE = Conditions(1, "nvidia-h200")
BASE_NS = 50_000.0
S = 0.006
KNOWN = SharedSpread(S, 1e6, cases=30)
"""A suite whose spread is as good as known: quantiles are those of the normal distribution."""


def measured(median_ns=BASE_NS, half=0.0, key="kernel/event/cold", **changes):
    """A new time whose interval is so wide to either side, relative to the median."""
    return made_up.measured(median_ns, *key.split("/"), half, **changes)


def recorded(median_ns=BASE_NS, half=0.0, key="kernel/event/cold", conditions=HERE, **changes):
    """A time on record; fields of its session's result may be given, too."""
    summary = Summary(median_ns, median_ns * (1 - half), median_ns * (1 + half), 100)
    of_time = {name: changes.pop(name) for name in ("quantiles_ns", "observations") if name in changes}
    known = {name: changes.pop(name) for name in Result.__struct_fields__ if name in changes}
    session = made_up.result(**{"errors": {}, "fingerprint": Fingerprint(), **known})
    timed = Measurement(*key.split("/"), 1, summary, **of_time)
    return SessionTime(timed, conditions, session=session, **changes)


def record_of(times, epochs=(("2026-11-01T00:00:00Z", None),), device_model="nvidia-h200"):
    """A record that holds these times, by their keys, in epochs that were opened then, and why."""
    case, opened = made_up.result().case, []
    for place, (moment, reason) in enumerate(epochs):
        sessions = {}
        for key, of_key in times.items():
            for number, time in enumerate(of_key):
                if time.epoch == place:
                    sessions.setdefault(time.session.session or f"{number}", []).append((key, time))
        results = tuple(_session(case, name, of, device_model) for name, of in sessions.items())
        opened.append(Epoch(moment, results, reason))
    return Record(case.id, tuple(opened), device_model)


def _session(case, name, timed, device_model):
    _, time = timed[0]
    card = Fingerprint(device_uuid=time.device, device_model_key=device_model if time.device else None)
    measurements = tuple(Measurement(*key.split("/"), 1, of.measurement.summary) for key, of in timed)
    changes = {"fingerprint": card, "measurements": measurements, "session": name}
    return structs.replace(time.session, case=case, nodeid=case.id, **changes)


def new(*percents, **changes):
    """Measurements so many per cent above 50 µs."""
    return [measured(BASE_NS * (1 + percent / 100), **changes) for percent in percents]


def around(*percents, **changes):
    """Recorded sessions so many per cent above 50 µs."""
    return [recorded(BASE_NS * (1 + percent / 100), **changes) for percent in percents]


def beside(share, **figures):
    """What was observed where other programs used this share of the host's CPUs."""
    return {"load": {"others_share": share, **figures}}


def spread_by(s=S, **changes):
    """Three recorded sessions whose log medians have the mean log 50 µs and the standard deviation s."""
    return [recorded(BASE_NS * math.exp(log), **changes) for log in (-s, 0.0, s)]


def on(cards, sessions):
    """The sessions, each on the card that one letter names."""
    return [structs.replace(time, device=card) for time, card in zip(sessions, cards, strict=True)]
