"""Runs the GPU tests of STUMPY in three simulators, one after the other: `make test-neighbours`.

They run in numba-cuda's own simulator, in ours, and in ours with their imports changed to numba-cuda-mlir.
What passes in the first has to pass in the others, in at most half of its time. Tests and package come from
the source distribution; nothing of it is kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

RELEASE = "stumpy==1.14.1"
FOR_MLIR = (
    (r"^(\s*)from numba import cuda$", r"\1from numba_cuda_mlir import cuda"),
    (r"^from numba import cuda, (.*)$", r"from numba import \1\nfrom numba_cuda_mlir import cuda"),
)
"""Its imports of `cuda` → the same from numba-cuda-mlir."""
OWN = ["-p", "no:gpukern"]
OURS = ["--gpukern-simulator=always"]


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = unpacked(Path(place))
        base, base_s = passed(folder, OWN, NUMBA_ENABLE_CUDASIM="1")
        print(f"numba-cuda's simulator: {len(base)} passed in {base_s:.0f} s", flush=True)  # noqa: T201
        found = [held("ours", base, base_s, *passed(folder, OURS))]
        for file in (*folder.glob("stumpy/*.py"), *folder.glob("tests/test_gpu_*.py")):
            text = file.read_text(encoding="utf-8")
            for own, changed in FOR_MLIR:
                text = re.sub(own, changed, text, flags=re.MULTILINE)
            file.write_text(text, encoding="utf-8")
        found.append(held("ours, for numba-cuda-mlir", base, base_s, *passed(folder, OURS)))
    return 0 if base and all(found) else 1


def unpacked(place: Path) -> Path:
    get = ["pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", f"--dest={place}", RELEASE]
    subprocess.run([sys.executable, "-m", *get], check=True)
    (archive,) = place.glob("*.tar.gz")
    shutil.unpack_archive(archive, place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def passed(folder: Path, options: list[str], **variables: str) -> tuple[set[str], float]:
    """Returns the tests that pass, and how long pytest took, in seconds."""
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    tests = sorted(str(file.relative_to(folder)) for file in folder.glob("tests/test_gpu_*.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--override-ini=addopts="]
    began = time.monotonic()
    subprocess.run(
        [*command, f"--junitxml={report}", *options, *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        check=False,
    )
    cases = ElementTree.parse(report).iter("testcase")
    names = {f"{case.get('classname')}::{case.get('name')}" for case in cases if not len(case)}
    return names, time.monotonic() - began


def held(what: str, base: set[str], base_s: float, names: set[str], took_s: float) -> bool:
    fails = [f"  fails: {name}" for name in sorted(base - names)]
    share = f"{took_s / base_s:.0%} of numba-cuda's time"
    print(f"{what}: {len(names)} passed in {took_s:.0f} s, {share}", *fails, sep="\n", flush=True)  # noqa: T201
    return base <= names and took_s <= base_s / 2


if __name__ == "__main__":
    sys.exit(main())
