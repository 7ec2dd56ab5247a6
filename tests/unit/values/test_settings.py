"""Options and ini values → Settings, or a SettingsError that shows option, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpukern.values.options import OPTIONS, SettingsError
from pytest_gpukern.values.settings import Settings

HERE = Path("/invoked/here")
ROOT = Path("/project/root")


def read(benchmark=False, given=None, ini=None, environ=None):
    return Settings.from_values(
        benchmark, given or {}, ini or {}, environ or {}, invocation_dir=HERE, ini_dir=ROOT
    )


def refused(**arguments):
    with pytest.raises(SettingsError) as error:
        read(**arguments)
    return str(error.value)


def test_nothing_given_is_the_default_and_does_not_ask_for_the_plugin():
    settings = read()
    assert settings == Settings()
    assert not settings.requested
    assert (settings.baseline, settings.cache, settings.threshold) == ("compare", "cold", 0.02)
    assert settings.fail_on == {"slower"}


IN_CI = {"slower", "no-gpu", "missing"}

# One row an option: value as text, attribute, what it becomes.
VALUES = [
    ("device", "GPU-1234", "device", "GPU-1234"),
    ("device", "0", "device", "0"),
    ("simulator", "never", "simulator", "never"),
    ("timer", "event", "timer", "event"),
    ("cache", "hot", "cache", "hot"),
    ("scope", "kernel, end_to_end,kernel", "scopes", ("kernel", "end_to_end")),
    ("backend", "numba,host", "backends", ("numba", "host")),
    ("size", "full", "size", "full"),
    ("axis", ["n=1000,2000", "dtype=float32"], "axes", {"n": (1000, 2000), "dtype": ("float32",)}),
    ("seed", "7", "seed", 7),
    ("baseline", "off", "baseline", "off"),
    ("fail-on", "host, accuracy,host", "fail_on", {"slower", "host", "accuracy"}),
    ("fail-on", "none", "fail_on", set()),
    ("fail-on", ["tail", "none", "host"], "fail_on", {"host"}),
    ("threshold", "5%", "threshold", 0.05),
    ("isolate", "on", "isolate", True),
    ("isolate", "off", "isolate", False),
    ("timeout", "2.5", "timeout_s", 2.5),
    ("timeout", "off", "timeout_s", None),
    ("sanitize", "memcheck, racecheck", "sanitize", ("memcheck", "racecheck")),
    ("code", "sm_80, sm_90,sm_80", "code", ("sm_80", "sm_90")),
    ("code", "recorded", "code", ("recorded",)),
]


def test_a_comparison_of_revisions_in_ci_has_to_measure_on_a_gpu():
    assert read(benchmark=True, given={"against": "main"}, environ={"CI": "1"}).fail_on == IN_CI
    given = {"against": "main", "fail-on": "none"}
    assert read(benchmark=True, given=given, environ={"CI": "1"}).fail_on == {"no-gpu", "missing"}


@pytest.mark.parametrize(("name", "value", "attribute", "expected"), VALUES)
@pytest.mark.parametrize("source", ["given", "ini"])
def test_each_option_is_read_from_the_command_line_and_from_its_ini_twin(
    source, name, value, attribute, expected
):
    needs_the_option = source == "ini" and name == "code"
    given = {name: True} if needs_the_option else {}
    settings = read(**{"given": given, source: {name: value}})
    assert getattr(settings, attribute) == expected
    assert settings.requested


def test_the_table_above_leaves_out_only_paths_and_what_needs_another_option():
    tested = {name for name, *_ in VALUES}
    of_measuring = {"all", "trace", "sessions", "only-changed"}
    needing = {"write-in-ci", "reason", "against", "against-setup"} | of_measuring
    assert {option.name for option in OPTIONS} - tested == {"baseline-dir", "report"} | needing


@pytest.mark.parametrize("source", ["given", "ini"])
@pytest.mark.parametrize(
    ("values", "attribute", "expected"),
    [
        ({"all": True}, "measure_all", True),
        ({"only-changed": True}, "only_changed", True),
        ({"only-changed": True}, "scopes", ("kernel",)),
        ({"trace": True, "report": ["run.json"]}, "trace", True),
    ],
)
def test_what_needs_another_option_is_read_beside_it(source, values, attribute, expected):
    assert getattr(read(benchmark=True, **{source: values}), attribute) == expected
    assert not getattr(read(benchmark=True), attribute)


@pytest.mark.parametrize(
    "reason", ["#123", "x", "why not: bounds are checked", "der Text ist größer", "境界検査"]
)
def test_what_says_anything_is_a_reason(reason):
    assert read(benchmark=True, given={"baseline": "update", "reason": reason}).reason == reason


def test_a_random_seed_is_another_each_time():
    drawn = {read(given={"seed": "random"}).seed for _ in range(8)}
    assert len(drawn) > 1
    assert all(0 <= seed < 2**32 for seed in drawn)


@pytest.mark.parametrize(
    ("name", "on_the_command_line", "in_the_file", "attribute", "expected"),
    [
        ("cache", "cold", "hot", "cache", "cold"),
        ("scope", "kernel", "transfer", "scopes", ("kernel",)),
        ("axis", ["n=1"], ["n=2", "m=3"], "axes", {"n": (1,)}),
        ("threshold", "1%", "9%", "threshold", 0.01),
        ("report", ["a.json", "a.json"], ["b.md"], "reports", (HERE / "a.json",)),
        ("fail-on", "tail", "no-gpu,host", "fail_on", {"slower", "tail"}),
    ],
)
def test_the_command_line_wins_over_the_ini_file(name, on_the_command_line, in_the_file, attribute, expected):
    settings = read(given={name: on_the_command_line}, ini={name: in_the_file})
    assert getattr(settings, attribute) == expected


@pytest.mark.parametrize(
    ("text", "given", "ini"),
    [
        ("some/place.md", HERE / "some/place.md", ROOT / "some/place.md"),
        ("/abs/place.md", Path("/abs/place.md"), Path("/abs/place.md")),
        ("~/place.md", Path("/home/somebody/place.md"), Path("/home/somebody/place.md")),
    ],
)
def test_paths_are_relative_to_whoever_wrote_them(text, given, ini, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert read(given={"baseline-dir": text}).baseline_dir == given
    assert read(ini={"baseline-dir": text}).baseline_dir == ini
    assert read(given={"report": [text]}).reports == (given,)
    assert read(ini={"report": [text]}).reports == (ini,)


def test_the_run_file_is_the_first_report_that_holds_the_whole_run():
    named = ["a.html", "b.json", "c.json"]
    assert read(ini={"report": named}).run_file == ROOT / "b.json"
    assert read(given={"report": ["a.html"]}).run_file is None


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.choices], ids=lambda option: option.name
)
@pytest.mark.parametrize("source", ["given", "ini"])
def test_a_value_that_is_no_choice_is_refused_with_option_value_and_every_choice(source, option):
    message = refused(**{source: {option.name: "nonsense"}})
    assert (option.cli if source == "given" else option.ini) in message
    assert "nonsense" in message
    assert all(choice in message for choice in option.choices)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2%", 0.02), ("0.5 %", 0.005), ("0.02", 0.02), (" 10% ", 0.1), ("99.9%", 0.999), ("1e-3", 0.001)],
)
def test_a_threshold_is_a_percentage_or_a_fraction(text, expected):
    assert read(given={"threshold": text}).threshold == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1_000", 1000),
        ("10**7", 10_000_000),
        ("1e7", 10_000_000),
        ("0.5", 0.5),
        ("grid-stride", "grid-stride"),
        ("1 000", "1 000"),
    ],
)
def test_an_axis_value_is_a_number_where_the_text_is_one_and_text_otherwise(text, expected):
    (value,) = read(given={"axis": [f"n={text}"]}).axes["n"]
    assert value == expected
    assert type(value) is type(expected)


def test_an_axis_keeps_the_order_of_its_values():
    assert read(given={"axis": [" n = 3 , 1,2"]}).axes == {"n": (3, 1, 2)}


@pytest.mark.parametrize(
    "text",
    ["__import__('os').abort()", "exit()", "10**10**10", "9**9**9**9", "[0]*10**9", "0**-1", "1e9**64"],
)
def test_an_axis_value_is_never_executed_and_never_takes_long(text):
    assert read(given={"axis": [f"n={text}"]}).axes == {"n": (text,)}


# Contradictions: (measuring, options, environment), and the way out; the first option is named.
CONTRADICTIONS = [
    (False, {"baseline": "create"}, {}, "add --gpu-benchmark"),
    (False, {"baseline": "update"}, {}, "add --gpu-benchmark"),
    (False, {"all": True}, {}, "add --gpu-benchmark"),
    (False, {"sessions": "3"}, {}, "add --gpu-benchmark"),
    (False, {"trace": True}, {}, "add --gpu-benchmark"),
    (True, {"trace": True}, {}, "only a run file keeps it; add --gpukern-report=RUN"),
    (False, {"report": ["a.json", "b.txt"]}, {}, "end it in ."),
    (False, {"report": [""]}, {}, "names no form of a report"),
    (False, {"size": "huge", "simulator": "always"}, {}, "never end in the simulator"),
    (True, {"baseline": "create", "simulator": "always"}, {}, "drop it or --gpukern-simulator=always"),
    (True, {"baseline": "update"}, {"CI": "true"}, "add --gpukern-write-in-ci"),
    (True, {"baseline": "update"}, {}, "add --gpukern-reason=TEXT"),
    (True, {"reason": "faster"}, {}, "add --gpukern-baseline=update"),
    (True, {"baseline": "append"}, {"CI": "1"}, "add --gpukern-write-in-ci"),
    (True, {"write-in-ci": True}, {}, "add --gpukern-baseline=create, append"),
    (True, {"device": "0", "simulator": "always"}, {}, "drop it or --gpukern-simulator=always"),
    (
        True,
        {"fail-on": "host,no-gpu", "simulator": "always"},
        {},
        "drop no-gpu or --gpukern-simulator=always",
    ),
    (True, {"size": "full", "simulator": "always"}, {}, "use smoke; drop it or --gpukern-simulator=always"),
    (True, {"seed": "7", "baseline": "create"}, {}, "drop it or --gpukern-baseline=create"),
    (True, {"size": "huge"}, {}, "checked, never measured; drop --gpu-benchmark"),
    (True, {"timer": "event", "backend": "host"}, {}, "or --gpukern-backend=host"),
    (True, {"fail-on": "no-gpu", "backend": "host"}, {}, "--gpukern-backend=host"),
    (False, {"fail-on": "missing"}, {}, "add --gpu-benchmark"),
    (False, {"against": "main"}, {}, "add --gpu-benchmark"),
    (True, {"against": "main", "baseline": "create"}, {}, "drop it or --gpukern-baseline=create"),
    (True, {"against": "main", "sessions": "1"}, {}, "2 or more a side"),
    (True, {"against-setup": "make"}, {}, "add --gpukern-against=REV"),
    (True, {"fail-on": "accuracy", "baseline": "off"}, {}, "drop it or --gpukern-baseline=off"),
    (True, {"sanitize": "memcheck"}, {}, "times under a sanitizer mean nothing; drop it or --gpu-benchmark"),
    (
        False,
        {"sanitize": "memcheck", "simulator": "always"},
        {},
        "no kernels to look into; drop it or --gpuk",
    ),
    (False, {"sanitize": "memcheck", "backend": "host"}, {}, "launch nothing on a GPU; drop it or --gpukern"),
    (False, {"sanitize": "memcheck", "isolate": "on"}, {}, "has processes of its own; drop it or --gpukern"),
    (True, {"code": "sm_90"}, {}, "kernels are compiled, and none runs; drop it or --gpu-benchmark"),
    *[
        (False, {"code": "sm_90", name: value}, {}, f"{reason}; drop it or --gpukern-{name}={value}")
        for name, value, reason in (
            ("simulator", "always", "the simulator compiles nothing"),
            ("sanitize", "memcheck", "a tool looks at kernels that run, and none runs"),
            ("device", "0", "kernels are compiled and run on no device"),
            ("isolate", "on", "its tests have processes of their own"),
            ("size", "huge", "huge sizes are for checks, and nothing is checked"),
            ("backend", "host", "only host variants are selected, which have no machine code"),
        )
    ],
    (False, {"only-changed": True}, {}, "nothing is measured; add --gpu-benchmark"),
    *[
        (True, {"only-changed": True, name: value}, {}, f"{reason}; drop it or --gpukern-{name}={value}")
        for name, value, reason in (
            ("baseline", "create", "it compares with a record"),
            ("baseline", "append", "it compares with a record"),
            ("baseline", "off", "it compares with a record"),
            ("against", "main", "that compares with no record"),
            ("simulator", "always", "the simulator has no machine code"),
            ("scope", "transfer", "it measures the scope kernel"),
        )
    ],
]


CODE, AGAINST, CREATE = {"code": "sm_90"}, {"against": "main"}, {"baseline": "create"}
UPDATE = {"baseline": "update", "reason": "new tiles"}
BLANKS = (" ", "TEXT", "<text>", "…", "...", "-", "why", "Why times changed", "TODO")
UPDATE_ONLY = {"baseline": "update"}
TRACE, CI = {"trace": True, "report": ["run.json"]}, {"CI": "1"}
# What nobody can mean, and what is not allowed alone either; the first option is named.
IMPOSSIBLE = [
    (False, {"scope": "kernel,nonsense"}, {}, "'nonsense' is none of kernel, transfer"),
    (False, {"backend": " , ,"}, {}, "must name some of host, "),
    *[
        (False, {name: text}, {}, rule)
        for name, texts, rule in (
            ("sessions", ("0", "2.5", "²"), "a whole number of processes, 1 or more, such as 5"),
            ("timeout", ("0", "nan", "soon"), "seconds are a number above 0, such as 60; or off"),
            ("threshold", ("5",), "such as 2% or 0.02; write 5% if per cent are meant"),
            (
                "threshold",
                ("0", "0%", "-1%", "100%", "1", "2", "150%", "nan", "nan%", "inf", "two", "%"),
                "more than 0 and less than 100 %, such as 2% or 0.02",
            ),
            (
                "seed",
                ("-1", "1.5", "4294967296", "some", "²", "99999999999999999999"),
                "must be a whole number",
            ),
            (
                "code",
                ("hopper", "90", "sm_9", "sm_90,recorded", ","),
                "architectures are written sm_90 or sm_80,sm_90; or recorded",
            ),
            ("code", (__file__,), f"To select {__file__}, name it before the option"),
        )
        for text in texts
    ],
    *[
        (False, {"axis": [text]}, {}, "an axis is written NAME=VALUE")
        for text in ("n", "=5", "n=", "n=,", "two words=1", "1n=3", "")
    ],
    (False, {"axis": ["n=1", "n=2"]}, {}, "axis 'n' is given twice; write n=1000,2000"),
    *[
        (True, {"reason": text, "baseline": "update"}, {}, f"{text!r} is no reason: say why")
        for text in BLANKS
    ],
    (True, TRACE | {"simulator": "always"}, {}, "drop it or --gpukern-simulator=always"),
    (True, TRACE | {"backend": "host"}, {}, "drop it or --gpukern-backend=host"),
    (True, TRACE | {"report": ["a.html", "a.csv"]}, {}, "add --gpukern-report=RUN.json"),
    # machine code is recorded under the rules of times
    (False, CREATE | CODE, CI, "add --gpukern-write-in-ci"),
    (False, UPDATE | CODE, CI, "add --gpukern-write-in-ci"),
    (False, UPDATE_ONLY | CODE, {}, "add --gpukern-reason=TEXT"),
    (False, {"fail-on": "no-gpu"} | CODE, {}, "drop no-gpu or"),
]


@pytest.mark.parametrize(("measuring", "options", "environ", "remedy"), CONTRADICTIONS + IMPOSSIBLE)
def test_what_cannot_be_is_refused_with_option_value_and_remedy(measuring, options, environ, remedy):
    name, value = next(iter(options.items()))
    shown = "" if value is True else f"={' '.join(value) if isinstance(value, list) else value}"
    message = refused(benchmark=measuring, given=options, environ=environ)
    assert message.startswith(f"--gpukern-{name}{shown}: ")
    assert remedy in message


@pytest.mark.parametrize(
    ("measuring", "options"),
    [(measuring, options) for measuring, options, *_ in CONTRADICTIONS if len(options) > 1],
)
def test_each_of_two_contradicting_options_is_allowed_alone(measuring, options):
    for name, value in options.items():
        assert read(benchmark=measuring, given={name: value}).requested


TOGETHER = [
    # what is recorded is measured by five processes, two revisions by four each, and everything else by one
    *((True, {"baseline": mode}, {}, {"sessions": 5}) for mode in ("create", "append")),
    *((True, {"baseline": mode}, {}, {"sessions": 1}) for mode in ("compare", "off")),
    *((True, {"baseline": mode, "sessions": "3"}, {}, {"sessions": 3}) for mode in ("append", "compare")),
    (True, AGAINST, {}, {"against": "main", "sessions": 4, "baseline": "off"}),
    (True, AGAINST | {"baseline": "compare"}, {}, {"baseline": "off"}),
    # an ini file may name a revision for the runs that measure and record nothing
    (False, {}, AGAINST, {"against": None}),
    (True, {}, AGAINST, {"against": "main"}),
    (True, CREATE, AGAINST, {"against": None, "baseline": "create", "sessions": 5}),
    # sanitizers for the runs that do not measure, and what only measuring runs need
    (False, {}, {"sanitize": "memcheck"}, {"sanitize": ("memcheck",)}),
    (True, {}, {"sanitize": "memcheck"}, {"sanitize": ()}),
    (False, {}, {"baseline": "update", "write-in-ci": True}, {"baseline": "update"}),
    (False, {}, {"all": "true"}, {"measure_all": True}),
    (True, {"backend": "host"}, {"timer": "event"}, {"timer": "event"}),
    # machine code is recorded, and compared with another revision's, without measuring
    (False, CODE | CREATE, {}, {"code": ("sm_90",), "baseline": "create", "benchmark": False}),
    (False, CODE | UPDATE, {}, {"code": ("sm_90",), "baseline": "update", "benchmark": False}),
    (False, CODE | AGAINST, {}, {"code": ("sm_90",), "against": "main", "baseline": "off"}),
    (False, CODE | {"fail-on": "missing"}, {}, {"fail_on": {"slower", "missing"}}),
    # architectures: without a value those of the ini file, which alone compiles nothing, or those on record
    (False, {"code": True}, {}, {"code": ("recorded",)}),
    (False, {"code": True}, {"code": "sm_80,sm_90"}, {"code": ("sm_80", "sm_90")}),
    (False, {"code": "recorded"}, {"code": "sm_80"}, {"code": ("recorded",)}),
    (False, {}, CODE, {"code": (), "requested": False}),
]


@pytest.mark.parametrize(("measuring", "given", "ini", "expected"), TOGETHER)
def test_what_a_value_comes_to_depends_on_the_others_and_on_where_it_stands(measuring, given, ini, expected):
    settings = read(measuring, given, ini)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_a_contradiction_of_the_ini_file_is_named_by_its_ini_value():
    message = refused(benchmark=True, ini={"baseline": "update"}, environ={"CI": "1"})
    assert message.startswith("ini value gpukern_baseline = update: ")
    message = refused(benchmark=True, ini={"baseline": "update", "reason": "new tiles"})
    assert message.endswith("add --gpukern-reason=TEXT"), "no run accepts what the next one finds"
    message = refused(given={"code": True}, ini={"code": "hopper"})
    assert message.startswith("ini value gpukern_code = hopper: architectures are written")


@pytest.mark.parametrize(("value", "is_ci"), [("1", True), ("github", True), ("", False), ("False", False)])
def test_ci_may_write_a_baseline_only_when_told_to(value, is_ci):
    told = {"baseline": "create", "write-in-ci": True}
    assert read(True, told, environ={"CI": value}).baseline == "create"
    if is_ci:
        message = refused(benchmark=True, given={"baseline": "create"}, environ={"CI": value})
        assert "CI may not write" in message
    else:
        assert read(True, {"baseline": "create"}, environ={"CI": value}).baseline == "create"


@pytest.mark.parametrize("options", [{"baseline": "compare"}, {"baseline-dir": "where"}])
def test_ci_asks_for_a_gpu_and_all_that_is_on_record_where_a_baseline_was_named_for_one(options):
    in_ci = {"CI": "true"}
    assert read(True, options, environ=in_ci).fail_on == IN_CI
    assert read(True, ini=options, environ=in_ci).fail_on == IN_CI
    assert read(True, {**options, "fail-on": "host"}, environ=in_ci).fail_on == IN_CI | {"host"}
    assert read(True, options, {"fail-on": "none"}, environ=in_ci).fail_on == IN_CI - {"slower"}
    assert read(True, options).fail_on == {"slower"}
    assert read(False, options, environ=in_ci).fail_on == {"slower"}
    for other in ({"baseline": "off"}, {"simulator": "always"}, {"backend": "host"}):
        assert read(True, {**options, **other}, environ=in_ci).fail_on == {"slower"}
    assert read(True, environ=in_ci).fail_on == {"slower"}


@pytest.mark.parametrize("empty", [None, [], False])
def test_empty_values_count_as_not_given(empty):
    settings = read(given={option.name: empty for option in OPTIONS}, ini={"device": ""})
    assert settings == Settings()


def test_an_empty_value_on_the_command_line_is_an_unset_variable():
    assert refused(given={"device": ""}).startswith("--gpukern-device= is empty")


def test_pytest_itself_delivers_command_line_and_ini_values(pytester):
    ini = "gpukern_cache = hot\ngpukern_axis = n=10**3 m=a,b\ngpukern_trace = false\ngpukern_report = r.json"
    pytester.makeini(f"[pytest]\n{ini}\n")
    report = pytester.path / "r.json"
    for given, threshold, axes in (
        ((), 0.02, {"n": (1000,), "m": ("a", "b")}),
        (("--gpukern-threshold=3%", "--gpukern-axis", "n=7"), 0.03, {"n": (7,)}),
    ):
        read_there = {"cache": "hot", "axes": axes, "threshold": threshold, "reports": [str(report)]}
        pytester.makepyfile(
            f"""
from pytest_gpukern.values.settings import Settings
def test_it(request):
    found = vars(Settings.from_config(request.config, environ={{}}))
    found["reports"] = [str(path) for path in found["reports"]]
    assert found.items() >= {read_there | {"trace": False}}.items()
"""
        )
        never = ("--gpukern-simulator=never", "-p", "no:cacheprovider")
        pytester.runpytest_inprocess(*never, *given).assert_outcomes(passed=1)
