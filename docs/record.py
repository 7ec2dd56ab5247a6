"""Records what the examples print into the pages that show it, and draws the pictures of reports.

`python docs/record.py [--gpu | --pictures] [NAME…]`

A page holds `<!-- recorded: NAME -->` and behind it a fenced block, whose text this script replaces. With
`--gpu` it records what needs a GPU, and nothing else, and writes card, driver, date and commit below each.
`tests/plugin/test_docs.py` runs the others again. `--pictures` draws the recorded run of `tests/data` with
Debian's Chromium, which `make browser` installs.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*/*.md")))
HERE = "."


@dataclass(frozen=True)
class Recording:
    """Describes one recorded output.

    Attributes:
        commands: what the reader types, in order; the last one's output is shown.
        folder: below `docs/examples`, copied into an empty one that the commands run in; or that of the
            project itself.
        needs_gpu: whether it can be recorded on a GPU only.
        status: the last command's exit status.
        edit: what the reader changes in the first test file before the last command: (old text, new text).
        library: a module that the commands need beside the development tools, or None.
    """

    commands: tuple[str, ...]
    folder: str = ""
    needs_gpu: bool = False
    status: int = 0
    edit: tuple[str, str] | None = None
    library: str | None = None


CHECKED = "pytest -q"
SIMULATED = "pytest -q --gpukern-simulator=auto"
MEASURED = "pytest -q --gpu-benchmark"
CHOSEN = "--gpukern-axis=n=4096 -k 'host.numpy or cupy.cublas or register_tiles'"
CREATED = f"{MEASURED} --gpukern-baseline=create"
RECORDINGS = {
    "init": Recording(("gpukern init",)),
    "first-test": Recording(("gpukern init", CHECKED)),
    "first-test-wrong": Recording(
        ("gpukern init", f"{CHECKED} --tb=no"), status=1, edit=("i < out.size:", "i < out.size - 1:")
    ),
    "first-test-gpu": Recording(("gpukern init", MEASURED), needs_gpu=True),
    "first-problem": Recording((SIMULATED,), "first-problem"),
    "first-problem-host": Recording((f"{MEASURED} -k host",), "first-problem"),
    "first-problem-gpu": Recording((MEASURED,), "first-problem", needs_gpu=True),
    "first-baseline-create": Recording((CREATED,), "first-problem", needs_gpu=True),
    "first-baseline-same": Recording((CREATED, MEASURED), "first-problem", needs_gpu=True),
    "first-baseline-slower": Recording(
        (CREATED, MEASURED), "first-problem", needs_gpu=True, status=1, edit=("min(1024,", "min(64,")
    ),
    "triton": Recording((SIMULATED,), "triton", library="triton"),
    "triton-wrong": Recording(
        (f"{SIMULATED} -k triton.tuned",),
        "triton",
        status=1,
        edit=("axis=0), mask=inside)\n\n", "axis=0))\n\n"),
        library="triton",
    ),
    "matmul": Recording((f"{MEASURED} suites/matmul {CHOSEN}",), HERE, needs_gpu=True),
}
"""Name → how it is recorded; a page names each one at least once."""


def output(recording: Recording) -> str:
    """Runs a recording's commands in a folder of their own; returns the last one and what it printed.

    Raises:
        RuntimeError: a command ended with another status than it should.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = ROOT if recording.folder == HERE else Path(folder) / "project"
        if recording.folder == "":
            here.mkdir()
        elif here != ROOT:
            shutil.copytree(DOCS / "examples" / recording.folder, here)
        for number, command in enumerate(recording.commands, 1):
            last = number == len(recording.commands)
            if last and recording.edit:
                change(min(here.rglob("test_*.py")), *recording.edit)
            done = run(command, here, gpu=recording.needs_gpu)
            if done.returncode != (recording.status if last else 0):
                raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}")
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.replace(str(here), "project").strip("\n"))
    printed = re.sub(r"\S*/site-packages/", "…/site-packages/", printed)
    return f"$ {recording.commands[-1]}\n{printed}\n"


def change(path: Path, old: str, new: str) -> None:
    """Changes a file as a reader is told to; raises ValueError where the old text is not there."""
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise ValueError(f"{path.name} does not hold {old!r}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def run(command: str, folder: Path, *, gpu: bool) -> subprocess.CompletedProcess[str]:
    """Runs `pytest …` or `gpukern …` as a reader would, 100 columns wide and without colours."""
    program, *options = shlex.split(command)
    module = {"pytest": "pytest", "gpukern": "pytest_gpukern"}[program]
    environ = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    if not gpu:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    hidden = ["-p", "no:cacheprovider"] if program == "pytest" else []
    return subprocess.run(
        [sys.executable, "-m", module, *options, *hidden],
        cwd=folder,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


BLOCK = r"(<!-- recorded: {name} -->\n```\w+\n)(.*?)(```\n)(?:\n\*Recorded on [^*]*\*\n)?"


def shown(page: str, name: str) -> list[str]:
    """Returns the texts that a page shows as recording `name`."""
    return [found[1] for found in re.findall(BLOCK.format(name=re.escape(name)), page, re.DOTALL)]


def caption(commit: str) -> str:
    """Returns the line below an output that was recorded on a GPU."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card, driver = subprocess.check_output(asked, text=True).splitlines()[0].split(", ")
    today = datetime.datetime.now(datetime.UTC).date()
    return f"\n*Recorded on an {card} with driver {driver}, {today}, at commit {commit}.*\n"


def head() -> str:
    """Returns the commit that is checked out; empty where git does not tell."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(asked, text=True, capture_output=True, check=False).stdout.strip()


RUN = ROOT / "tests" / "data" / "run-h200.json.gz"
SLOWER = "vector_exp/numba.grid_stride/n=10000000,block=128,most_blocks=1056"


def draw_pictures(folder: Path) -> list[Path]:
    """Draws the HTML report of the recorded run: what failed, how fast kernels are, and the slower case."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        page_file = Path(made) / "report.html"
        done = run(f"gpukern report {RUN} -o {page_file}", Path(made), gpu=False)
        if done.returncode:
            raise RuntimeError(done.stdout)
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 820}, reduced_motion="reduce")
        pictures = [folder / f"report-{name}.png" for name in ("failed", "kernels", "case")]
        folder.mkdir(exist_ok=True)
        page.goto(page_file.as_uri())
        page.wait_for_timeout(1000)
        page.screenshot(path=pictures[0])
        page.set_viewport_size({"width": 1300, "height": 1160})
        page.locator("summary", has_text="How fast").evaluate("title => title.scrollIntoView()")
        page.wait_for_timeout(1000)
        page.screenshot(path=pictures[1])
        page.get_by_role("link", name=SLOWER).first.click()
        page.set_viewport_size({"width": 1300, "height": 1750})
        page.wait_for_timeout(1000)
        page.screenshot(path=pictures[2])
        browser.close()
    return pictures


def main() -> None:
    """Records what was asked for into all pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--gpu", nargs="?", const="HEAD", metavar="COMMIT", help="record what needs a GPU, as of this commit"
    )
    parser.add_argument("--pictures", action="store_true", help="draw the pictures instead")
    parser.add_argument("names", nargs="*", help="of recordings; all by default")
    known = parser.parse_args()
    if known.pictures:
        for path in draw_pictures(DOCS / "pictures"):
            print(f"drew {path.relative_to(ROOT)}", flush=True)
        return
    commit = head() if known.gpu == "HEAD" else known.gpu
    if known.gpu and not commit:
        parser.error("git does not tell the commit; name it: --gpu=COMMIT")
    below = caption(commit) if known.gpu else ""
    failed = False
    for name in known.names or [name for name, each in RECORDINGS.items() if each.needs_gpu == bool(commit)]:
        try:
            text = output(RECORDINGS[name])
        except RuntimeError as error:
            failed = True
            print(f"not recorded: {name}: {error}", flush=True)
            continue
        block = re.compile(BLOCK.format(name=re.escape(name)), re.DOTALL)
        for page in PAGES:
            old = page.read_text(encoding="utf-8")
            new = block.sub(lambda found, text=text: found[1] + text + found[3] + below, old)
            if new != old:
                page.write_text(new, encoding="utf-8")
        print(f"recorded {name}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
