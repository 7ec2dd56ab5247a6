"""Results → the properties of their tests in JUnit."""

from made_up_results import measured, result, verdict
from msgspec import structs

from pytest_gpukern.report.junit import properties
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import GateFailure


def of(*args, **changes):
    return dict(properties(RunResults([result(*args, **changes)])))


def test_a_judged_time_has_its_change_with_the_interval():
    slower = structs.replace(verdict("SLOWER", 1.0531234567, "grew"), ratio_low=1.04, ratio_high=1.0665)
    assert of("cupy.exp", measured(48_600.25), verdicts=[slower]) == {
        "gpukern.verdict": "SLOWER",
        "gpukern.time_ns": "48600.25",
        "gpukern.change": "0.053123",
        "gpukern.low": "0.04",
        "gpukern.high": "0.0665",
        "gpukern.device": "NVIDIA H200",
        "gpukern.reason": "grew",
    }


def test_a_failure_has_its_headline_and_why_it_is_so():
    why = (Difference("registers", "30", "53"),)
    slower = structs.replace(verdict("SLOWER", 1.1, "grew"), ratio_low=1.08, ratio_high=1.12, differences=why)
    case = result("cupy.exp", measured(1100.0), verdicts=[slower])
    failure = Failure("grew", (GateFailure("SLOWER", "grew", "kernel/event/cold"),))
    found = dict(properties(RunResults([case], failures={case.nodeid: failure})))
    assert found["gpukern.headline"] == "SLOWER: kernel 1.00 → 1.10 µs, +10.0 % [+8.0, +12.0]"
    assert found["gpukern.why"] == "registers 30 → 53"


def test_what_has_no_value_is_left_out():
    assert of("cupy.exp", measured(), verdicts=[verdict("NEW", reason="")]).keys() == {
        *("gpukern.verdict", "gpukern.time_ns", "gpukern.device")
    }
    assert of("cupy.exp", fingerprint=Fingerprint()) == {}


def test_the_scope_that_the_report_shows_first_counts():
    both = [measured(1000.0), measured(9000.0, scope="transfer")]
    found = of("cupy.exp", *both, verdicts=[verdict("SAME", 1.0), verdict("SLOWER", 2.0)])
    assert (found["gpukern.verdict"], found["gpukern.time_ns"]) == ("SAME", "1000.0")


def test_the_simulator_has_no_times():
    assert "gpukern.time_ns" not in of("numba.exp", measured(), simulated=True)
