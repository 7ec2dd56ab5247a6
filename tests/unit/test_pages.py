"""What the site says of tables, faults, sizes, tolerances and files is what the code has."""

import functools
import json
import re
from pathlib import Path

import pytest
import reference_tables
from any_value import values_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from made_up_runs import gpu_run
from markdown_it import MarkdownIt

from pytest_gpukern import Tolerance, boundaries
from pytest_gpukern.baseline import code_file, codec
from pytest_gpukern.baseline.record import Baseline, Epoch, Record
from pytest_gpukern.check.diagnosis import Fault
from pytest_gpukern.measure.observers import OBSERVERS
from pytest_gpukern.report.run import Failure, RunResults, Unchanged, Voucher
from pytest_gpukern.report.run_file import run_text
from pytest_gpukern.values.backend_table import BACKENDS
from pytest_gpukern.values.failure_table import KIND_OF_FINDING
from pytest_gpukern.values.form_table import suffixes
from pytest_gpukern.values.result import CompiledCode, Result
from pytest_gpukern.values.timer_table import TIMERS
from pytest_gpukern.values.verdict_table import VerdictKind

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIGURES = {name: row.figures for name, row in OBSERVERS.items() if row.figures}
WRONG_KERNEL = (DOCS / "how-to/wrong-kernel.md").read_text(encoding="utf-8")
CHECKING = (DOCS / "explanation/checking.md").read_text(encoding="utf-8")
TOLERANCES = (DOCS / "reference/tolerances.md").read_text(encoding="utf-8")


def mistakes(text):
    """The lines of a page that are shown as Markdown, since they are part of no table and no list."""
    found, kind = [], ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        kind = token.type if token.nesting > 0 else kind
        if token.type == "table_open":
            rows = text.splitlines()[slice(*token.map)]
            cells = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
            found += [row for row, count in zip(rows, cells, strict=True) if count != cells[0]]
        elif token.type == "inline":
            shown = "".join(part.content if part.type == "text" else "\n" for part in token.children)
            row_or_item = r"^\|.*" if kind == "heading_open" else r"^(?:\||[-*+] |\d+[.)] ).*"
            found += re.findall(rf"{row_or_item}|^.*(?:\*\*|`|\]\().*", shown, re.MULTILINE)
    return found


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n", "| behind a blank | line |"),
        ("| a | b |\n|---|---|\n| 1 | 2\\|3 |\n", "| 1 | one | too many |"),
        ("1. one\n\nSteps, and no list:\n", "2. two"),
        ("## 1. one\n\n", "**bold *"),
        ("`code`\n\n", "an `open"),
    ],
)
def test_what_no_table_and_no_list_shows_is_found(good, bad):
    assert mistakes(good) == []
    assert mistakes(good + bad) == [bad]


def test_tables_and_lists_of_all_pages_are_shown_as_such():
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("[a-z]*/*.md")]
    assert {page.name: found for page in pages if (found := mistakes(page.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    ("page", "row", "names"),
    [
        ("reference/backends.md", "\n| `{}` |", BACKENDS),
        ("explanation/timing.md", "\n| `{}` |", TIMERS),
        ("reference/verdicts.md", "\n| {} |", [*VerdictKind, *Fault, *KIND_OF_FINDING]),
        ("reference/report.md", "\n| `{}` |", [*suffixes(), *FIGURES]),
        ("reference/report.md", "`{}`", [name for figures in FIGURES.values() for name in figures]),
    ],
    ids=["backends", "timers", "verdicts, faults and findings", "forms and observers", "figures"],
)
def test_each_row_of_a_table_is_on_its_page(page, row, names):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in names if row.format(name) not in text] == [], f"docs/{page} lacks a row"


def test_the_page_about_wrong_kernels_has_every_fault():
    faults, _, _ = WRONG_KERNEL.partition("| in front |")
    named = {
        name for row in re.findall(r"^\| ([a-zN, ]+) \|", faults, re.MULTILINE) for name in row.split(", ")
    }
    assert named - {"fault"} == {str(fault) for fault in Fault}


def test_the_reasons_that_the_page_about_undecided_quotes_are_those_of_the_gate():
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("pytest_gpukern/gate/*.py"))
    page = (DOCS / "how-to/undecided.md").read_text(encoding="utf-8").replace("`", "")
    tables = re.findall(r"^\| the report says \|.*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    quoted = [row.split(" | ")[0].strip("| ") for row in "".join(tables).splitlines()]
    varies = r"[+−=]?\d[\d.]*(?: %)?|^but|, but| than |(?:meanwhile|before)$"
    words = [re.split(varies, row) for row in quoted]
    assert len(quoted) > 15
    assert [word for row in words for word in row if word.strip(" :") not in source] == []


def test_the_page_about_checks_shows_the_sizes_of_boundaries():
    assert f"\n{', '.join(map(str, boundaries(256)))}\n" in CHECKING


def test_the_page_about_tolerances_shows_the_defaults():
    rows = re.findall(r"^\| (b?float\d+) \| (\S+) \| (\S+) \|$", TOLERANCES, re.MULTILINE)
    assert [dtype for dtype, _, _ in rows] == ["float16", "bfloat16", "float32", "float64"]
    for dtype, rtol, atol in rows:
        assert Tolerance.for_dtype(dtype) == Tolerance(float(rtol), float(atol))


def test_no_page_and_no_metadata_gives_an_address_of_this_project_since_it_has_none():
    pages = [
        ROOT / "pyproject.toml",
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *ROOT.rglob("pytest_gpukern/**/*.py"),
    ]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "https://" in text
    assert re.findall(r"https?://\S*gpukern\S*", text) == []


def test_the_schema_of_our_files_is_that_of_the_code():
    text = reference_tables.SCHEMA.read_text(encoding="utf-8")
    hint = (
        "run `python docs/reference_tables.py`, and raise SCHEMA where an older release would refuse a file"
    )
    assert text == reference_tables.schema(), hint


@functools.cache
def schema():
    content = json.loads(reference_tables.SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(content)
    return Draft202012Validator(content)


def record(sessions):
    return Record("a case", (Epoch("2026-11-05T12:30:00Z", tuple(sessions)),))


results = st.lists(values_of(Result), min_size=1, max_size=2)
runs = st.builds(
    RunResults,
    results=results,
    sessions=st.dictionaries(st.text(), results, max_size=1),
    failures=st.dictionaries(st.text(), values_of(Failure), max_size=1),
    history=st.dictionaries(st.text(), results.map(record), max_size=1),
    unchanged=values_of(Unchanged),
    voucher=values_of(Voucher),
)
baselines = results.map(lambda each: Baseline("saxpy", "nvidia-h200", {"a case": record(each)}))
codes = values_of(CompiledCode).map(
    lambda of: code_file.CodeFile("saxpy").adding([("a", {"sm_90": of})], replaces=True)
)
FILES = runs.map(run_text) | baselines.map(codec.render) | codes.map(code_file.rendered)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None, phases=[Phase.generate])
@given(FILES)
def test_whatever_we_write_fits_the_schema(content):
    error = best_match(schema().iter_errors(json.loads(content)))
    assert error is None, f"{error.json_path}: {error.message:.200}"


RUN = json.loads(run_text(gpu_run(3)))
TIME = ("results", 0, "measurements", 0, "summary", "median_ns")


@pytest.mark.parametrize(
    ("place", "value"),
    [(("schema",), 1), (("made_up",), 1), (TIME, "1 ms"), (("processes", "made_up"), {"seed": "x"})],
)
def test_a_file_of_another_shape_does_not_fit_the_schema(place, value):
    changed = json.loads(json.dumps(RUN))
    assert schema().is_valid(changed)
    functools.reduce(lambda of, name: of[name], place[:-1], changed)[place[-1]] = value
    assert not schema().is_valid(changed)
