"""Compares the layouts of CUPTI's records with its header, by a C compiler, where both are installed.

`pip install nvidia-cuda-cupti nvidia-cuda-runtime` brings the headers, and so does the CUDA toolkit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from fake_cupti import LAYOUTS

from pytest_gpukern.timers.cupti.activity import _READ

FIELDS = {name: set(fields) for name, fields in _READ.values()}
"""Name of a layout without version → the fields that we read."""


def include_folders():
    """The folders of CUPTI's header and of those that it includes, or None."""
    packages = Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/include")
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    folders = [*packages, toolkit / "include", toolkit / "extras/CUPTI/include"]
    found = [
        next((folder for folder in folders if (folder / name).exists()), None)
        for name in ("cupti_activity.h", "cuda.h", "crt/host_defines.h")
    ]
    return None if None in found else found


def struct_of(layout):
    """`activity_memcpy6_dtype` → `CUpti_ActivityMemcpy6`."""
    name = layout.removeprefix("activity_").removesuffix("_dtype")
    return "CUpti_Activity" + ("API" if name == "api" else "".join(map(str.capitalize, name.split("_"))))


def in_the_header(layouts, folder):
    """(layout, field) → its place and size in the header's structures; of None, the size of the whole."""
    lines = []
    for layout, fields in layouts.items():
        struct = struct_of(layout)
        lines.append(f'printf("{layout} - 0 %zu\\n", sizeof({struct}));')
        for field in fields:
            member = re.sub(r"_(\w)", lambda match: match[1].upper(), field)
            where = f"offsetof({struct}, {member}), sizeof((({struct} *)0)->{member})"
            lines.append(f'printf("{layout} {field} %zu %zu\\n", {where});')
    source = "#include <stddef.h>\n#include <stdio.h>\n#include <cupti.h>\nint main(void) {\n"
    (folder / "layouts.c").write_text(source + "\n".join(lines) + "\n}\n")
    includes = [f"-I{each}" for each in include_folders()]
    subprocess.run(["cc", *includes, "layouts.c", "-o", "layouts"], cwd=folder, check=True)
    told = subprocess.run([folder / "layouts"], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in told.splitlines())
    return {(layout, field): (int(place), int(size)) for layout, field, place, size in rows}


@pytest.mark.skipif(include_folders() is None, reason="needs the headers of CUPTI and of the CUDA runtime")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("of", ["the fake", "cupti-python"])
def test_every_field_that_we_read_lies_where_the_header_says(of, tmp_path):
    dtypes = LAYOUTS if of == "the fake" else vars(pytest.importorskip("cupti.cupti"))
    known = {
        layout: FIELDS[name]
        for layout in dtypes
        if (name := re.sub(r"^activity_|\d*_dtype$", "", layout)) in FIELDS
        and FIELDS[name] <= set(dtypes[layout].names)
    }
    assert len({re.sub(r"\d", "", layout) for layout in known}) == len(FIELDS)
    expected = in_the_header(known, tmp_path)
    for (layout, field), place_and_size in expected.items():
        dtype = dtypes[layout]
        found = dtype.fields[field] if field != "-" else (dtype, 0)
        assert (found[1], found[0].itemsize) == place_and_size, f"{layout}.{field}"
