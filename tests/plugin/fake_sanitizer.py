#!/usr/bin/env python3
"""In compute-sanitizer's place: runs the command behind its options, and writes what it would have found.

Record, summaries and XML are as recorded (`tests/unit/data/sanitizer`); what it says of itself is made up.

A test is at fault where its name is in a file `faults` of the working folder, a line each: a tool, a part of
the test's name, and how it shows:

- `finding`: a record, a summary of one error, and the status that was asked for;
- `quiet`: as the first, but the process ends with 0;
- `mute`: the tool writes neither summary nor records;

What ran is known by what `fake_gpu` notes. The planted fault is found, without running
anything, unless it is said that it is not: `memcheck planted none`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

RECORD = """<record><kind>Precise</kind><level>Error</level>
<who><threadIdx><x>63</x><y>0</y><z>0</z></threadIdx><blockIdx><x>1</x><y>0</y><z>0</z></blockIdx></who>
<what><text>Invalid __global__ write of size 4 bytes is out of bounds</text></what>
<where><func>add_flat</func></where></record>"""
FOUND = {"finding", "quiet"}


def main(arguments):
    if arguments == ["--version"]:
        sys.stdout.write("NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0 (build 1) (public-release)\n")
        return 0
    options, command = split(arguments)
    tool = options["--tool"]
    if "pytest_gpukern.sanitizer.self_check" in command:
        shows = {how for name, part, how in faults() if (name, part) == (tool, "planted")} or {"finding"}
        write(options, tool, shows, 0)
        return int(options["--error-exitcode"]) if "finding" in shows else 0
    with Path("sanitized.log").open("a") as log:
        log.write(json.dumps({"options": options, "command": command[:3]}) + "\n")
    began = Path(options["--log-file"]).with_name("began")
    # As compute-sanitizer does, it hands open files on: the session's connection is one.
    ended = subprocess.run(command, env={**os.environ, "FAKE_GPU_NOTES": str(began)}, close_fds=False)
    ran = began.read_text().splitlines() if began.exists() else []
    shows = {how for name, part, how in faults() if name == tool and any(part in nodeid for nodeid in ran)}
    write(options, tool, shows, ended.returncode)
    if "finding" in shows:
        return int(options["--error-exitcode"])
    return 0 if options.get("--check-exit-code") == "no" else ended.returncode


def split(arguments):
    """The tool's options, all with a value but one, and the command behind them."""
    options, rest = {}, list(arguments)
    while rest and rest[0].startswith("--"):
        name = rest.pop(0)
        options[name] = True if name == "--xml" else rest.pop(0)
    return options, rest


def faults():
    file = Path("faults")
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def write(options, tool, shows, status):
    log = "========= COMPUTE-SANITIZER\n"
    if "mute" in shows:
        Path(options["--log-file"]).write_text(log)
        return
    if status < 0:
        log += "========= Error: made up: what ran came to no good end\n"
    else:
        count = 1 if shows & FOUND else 0
        if tool == "racecheck":
            log += f"========= RACECHECK SUMMARY: {count} hazards displayed ({count} errors, 0 warnings)\n"
        else:
            log += f"========= ERROR SUMMARY: {count} error{'' if count == 1 else 's'}\n"
    Path(options["--log-file"]).write_text(log)
    records = RECORD if shows & FOUND else ""
    text = f'<?xml version="1.0"?>\n<ComputeSanitizerOutput>{records}</ComputeSanitizerOutput>\n'
    Path(options["--save"]).write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
