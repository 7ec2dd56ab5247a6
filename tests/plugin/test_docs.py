"""What README and site show runs, what they name is there, and what there is they name."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import record
import reference_tables
from markdown_it import MarkdownIt

import pytest_gpukern
from pytest_gpukern.cli.main import COMMANDS
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.options import OPTIONS

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs").glob("[a-z]*/*.md")))
}
README = TEXTS["README.md"]
EXAMPLES = (
    ROOT / "pytest_gpukern/cli/templates/test_saxpy_numba.py",
    ROOT / "docs/examples/first-problem/test_saxpy.py",
)
"""What README and tutorials begin with; recordings run both."""
RECORDED = {name: recording for name, recording in record.RECORDINGS.items() if not recording.needs_gpu}
NEEDS_GPU = "<!-- needs a GPU -->\n"


def python_of(text):
    """The Python blocks of a page, but for those that say that they need a GPU."""
    blocks = re.findall(rf"({NEEDS_GPU})?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [code for needs_gpu, code in blocks if not needs_gpu]


def masked(printed):
    """What a run printed without what two runs differ by: figures, widths, and notes about noise."""
    text = re.sub(r"^[.F]+ +\[ *\d+%\]\n", "", printed, flags=re.MULTILINE)
    text = re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", text)
    text = re.sub(r"# (ns|µs|ms|s)\b", "# s", re.sub(r"# [kMG]?B/s", "# B/s", text))
    return re.sub(r"([ =_-])\1+", r"\1", text)


def test_the_readme_is_two_screens_and_shows_the_files_that_the_tutorials_use():
    assert len(README.splitlines()) <= 190
    assert python_of(README) == [path.read_text(encoding="utf-8") for path in EXAMPLES]


def test_the_code_of_pages_passes_in_the_simulator(pytester):
    problem = EXAMPLES[1].read_text(encoding="utf-8")
    for page in [name for name in TEXTS if name != "README.md"]:
        for number, code in enumerate(python_of(TEXTS[page])):
            whole = code if "import" in code else f"{problem}\n\n{code}"  # of the page's example
            name = f"{Path(page).stem.replace('-', '_')}_{number}"
            folder = pytester.mkdir(name)  # a problem's name is unique among those of one folder
            folder.joinpath(f"test_{name}.py").write_text(whole, encoding="utf-8")
    result = pytester.runpytest_subprocess("--gpukern-simulator=always", "-W", "error")
    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"passed"}


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_shown_is_what_is_printed(name):
    library = RECORDED[name].library
    if library and find_spec(library) is None:  # Triton cannot be imported twice
        pytest.skip(f"{library} is not installed")
    texts = [text for page in TEXTS.values() for text in record.shown(page, name)]
    printed = masked(record.output(RECORDED[name]))
    assert texts
    for text in texts:
        assert masked(text) == printed, f"run `python docs/record.py {name}`"


def test_pages_show_every_recording_and_no_other():
    named = {name for page in TEXTS.values() for name in re.findall(r"<!-- recorded: (.*?) -->", page)}
    shown = {name for page in TEXTS.values() for name in record.RECORDINGS if record.shown(page, name)}
    assert named == shown == set(record.RECORDINGS)


@pytest.mark.parametrize("page", TEXTS)
def test_the_options_and_commands_that_a_page_names_are_there(page):
    text = TEXTS[page]
    assert set(re.findall(r"--gpukern-[a-z-]*[a-z]", text)) <= {option.cli for option in OPTIONS}
    assert set(re.findall(r"\bgpukern_[a-z_]*[a-z]", text)) <= {option.ini for option in OPTIONS}
    assert set(re.findall(r"(?:`|\$ |^)gpukern ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)


def test_the_reference_has_every_argument_and_name():
    problems, tests = TEXTS["docs/reference/problems.md"], TEXTS["docs/reference/tests.md"]
    assert [name for name in MarkerOptions.__dataclass_fields__ if f"| `{name}` |" not in tests] == []
    public = set(pytest_gpukern.__all__) - {"__version__"}
    assert public == set(re.findall(r"auto(?:class|function|exception):: (\w+)", problems + tests))


@pytest.mark.parametrize("page", reference_tables.PAGES, ids=lambda page: page.name)
def test_tables_of_options_and_commands_are_those_of_the_code(page):
    text = page.read_text(encoding="utf-8")
    assert text == reference_tables.written(page), "run `python docs/reference_tables.py`"


def test_what_the_readme_links_to_is_there():
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_description_of_a_release_has_the_words_of_the_readme_and_no_link_into_the_repository():
    build = [sys.executable, "-m", "hatch_fancy_pypi_readme", ROOT / "pyproject.toml"]
    text = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = [
        child.attrs.get("href", child.attrs.get("src"))
        for token in MarkdownIt("commonmark").enable("table").parse(text)
        for child in token.children or ()
        if child.type in ("link_open", "image")
    ]
    assert [target for target in targets if not target.startswith("https://")] == []
    assert python_of(text) == python_of(README)
    assert re.findall("^## .*", text, re.MULTILINE) == [
        re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading) for heading in re.findall("^## .*", README, re.MULTILINE)
    ]
