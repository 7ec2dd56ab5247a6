"""Records what the examples print into the pages that show it: `python docs/record.py [--gpu] [NAME…]`.

A page holds `<!-- recorded: NAME -->` and behind it a fenced block, whose text this script replaces. Outputs
that need a GPU are recorded with `--gpu` only. `tests/plugin/test_docs.py` runs the others again.
"""

from __future__ import annotations

import argparse
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


@dataclass(frozen=True)
class Recording:
    """Describes one recorded output.

    Attributes:
        folder: below `docs/examples`, copied into an empty one that the commands run in.
        commands: what the reader types, in order; the last one's output is shown.
        needs_gpu: whether it can be recorded on a GPU only.
        status: the last command's exit status.
        edits: what the reader changes in `test_saxpy.py` before the last command: old text → new text.
    """

    folder: str
    commands: tuple[str, ...]
    needs_gpu: bool = False
    status: int = 0
    edits: tuple[tuple[str, str], ...] = ()


SIMULATED = "pytest -q --gpukern-simulator=auto"
MEASURED = "pytest -q --gpu-benchmark"
CREATED = f"{MEASURED} --gpukern-baseline=create"
SLOWER = (("min(1024,", "min(64,"),)
RECORDINGS = {
    "first-test": Recording("first-test", (SIMULATED,)),
    "first-test-wrong": Recording(
        "first-test", (SIMULATED,), status=1, edits=(("i < out.size:", "i < out.size - 1:"),)
    ),
    "first-test-gpu": Recording("first-test", (MEASURED,), needs_gpu=True),
    "first-problem": Recording("first-problem", (SIMULATED,)),
    "first-problem-host": Recording("first-problem", (MEASURED,)),
    "first-problem-gpu": Recording("first-problem", (MEASURED,), needs_gpu=True),
    "first-baseline-create": Recording("first-problem", (CREATED,), needs_gpu=True),
    "first-baseline-same": Recording("first-problem", (CREATED, MEASURED), needs_gpu=True),
    "first-baseline-slower": Recording(
        "first-problem", (CREATED, MEASURED), needs_gpu=True, status=1, edits=SLOWER
    ),
}
"""Name → how it is recorded; pages name each one at least once."""


def output(recording: Recording) -> str:
    """Runs a recording's commands in a copy of its folder; returns the last one and what it printed.

    Raises:
        RuntimeError: a command ended with another status than it should.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "project"
        shutil.copytree(DOCS / "examples" / recording.folder, here)
        for number, command in enumerate(recording.commands, 1):
            last = number == len(recording.commands)
            if last:
                edit(here / "test_saxpy.py", recording.edits)
            done = run(command, here)
            if done.returncode != (recording.status if last else 0):
                raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}")
    printed = done.stdout.replace(str(here), "project").rstrip()
    return f"$ {recording.commands[-1]}\n{printed}\n"


def edit(path: Path, edits: tuple[tuple[str, str], ...]) -> None:
    """Changes a file as a reader is told to; ValueError where a text is not there."""
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        if old not in text:
            raise ValueError(f"{path.name} does not hold {old!r}")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `pytest …` or `gpukern …` as a reader would, 100 columns wide and without colours."""
    program, *options = shlex.split(command)
    module = {"pytest": "pytest", "gpukern": "pytest_gpukern"}[program]
    environ = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    environ |= {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    whole = [sys.executable, "-m", module, *options]
    if program == "pytest":
        whole += ["-p", "no:cacheprovider"]
    return subprocess.run(
        whole,
        cwd=folder,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


BLOCK = r"(<!-- recorded: {name} -->\n```\w+\n)(.*?)(```)"


def shown(page: str, name: str) -> list[str]:
    """Returns the texts that a page shows as recording `name`."""
    return [found[1] for found in re.findall(BLOCK.format(name=re.escape(name)), page, re.DOTALL)]


def main() -> None:
    """Records what was asked for into all pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="record what needs a GPU, too")
    parser.add_argument("names", nargs="*", help="of recordings; all by default")
    known = parser.parse_args()
    for name in known.names or RECORDINGS:
        if RECORDINGS[name].needs_gpu and not known.gpu:
            continue
        text = output(RECORDINGS[name])
        for page in PAGES:
            old = page.read_text(encoding="utf-8")
            new = re.sub(
                BLOCK.format(name=re.escape(name)),
                lambda found, text=text: found[1] + text + found[3],
                old,
                flags=re.DOTALL,
            )
            if new != old:
                page.write_text(new, encoding="utf-8")
        print(f"recorded {name}")  # noqa: T201


if __name__ == "__main__":
    main()
