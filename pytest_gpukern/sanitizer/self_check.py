"""Whether a tool finds anything here at all: it is shown a planted fault before it vouches for tests.

A tool that does not know the device, is kept from instrumenting kernels or was told to filter them may well
end with a summary of no errors. Only one that has found what is there to be found is believed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes.process import end_group
from pytest_gpukern.sanitizer.judge import Evidence, Judgement, judge
from pytest_gpukern.sanitizer.sessions import environment_under, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.sanitizer.tool import Tool


_TIMEOUT_S = 180.0
_PLANTED = "pytest_gpukern.sanitizer.planted"


def why_not_believed(
    program: Tool, tool: str, environ: Mapping[str, str] = os.environ, *, timeout_s: float = _TIMEOUT_S
) -> str | None:
    """Why a tool cannot be believed that finds nothing, in words; None where it found the planted fault.

    Args:
        program: the installed compute-sanitizer.
        tool: which of its tools.
        environ: this process's environment, with the device pinned.
        timeout_s: how long the tool may take.
    """
    found = _shown(program, tool, environ, timeout_s)
    if found.is_in_a_kernel:
        return None
    said = "; ".join(finding.text for finding in found.findings)
    reason = found.reason or said or "it says that there is no error"
    return f"{tool} did not find the fault that was planted for it: {reason}"


def _shown(program: Tool, tool: str, environ: Mapping[str, str], timeout_s: float) -> Judgement:
    package = str(FOLDER.parent)
    path = os.pathsep.join(filter(None, (package, environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="gpukern-sanitizer-", ignore_cleanup_errors=True) as folder:
        xml, log = Path(folder) / "records.xml", Path(folder) / "log"
        command = (*program.command(tool, xml=xml, log=log), sys.executable, "-P", "-m", _PLANTED, tool)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environ, **environment_under(tool, environ), "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(process)
        return judge(Evidence(tool=tool, status=status, xml=text_of(xml), log=text_of(log) or ""))
