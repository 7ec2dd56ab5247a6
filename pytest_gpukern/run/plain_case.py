"""Which case a test stands for that is no case of a problem: what its baseline and its report call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.values.result import CaseInfo

if TYPE_CHECKING:
    from pathlib import Path


def plain_case_info(nodeid: str, test_file: Path, *, shared_folder: bool = False) -> CaseInfo:
    """The case of a test that is no case of a problem: its module stands for the problem.

    Args:
        nodeid: pytest's name of the test, which begins with its file's path.
        test_file: the file.
        shared_folder: whether all baselines lie in one folder, where modules of one name must not meet.
    """
    path, _, name = nodeid.partition("::")
    module = path.removesuffix(test_file.suffix) or test_file.stem
    name = name or nodeid
    function, bracket, parameters = name.partition("[")  # in which :: and . may tell two tests apart
    return CaseInfo(
        id=f"{test_file.stem}/{function.replace('::', '.')}{bracket}{parameters}",
        problem=module,
        problem_version=1,
        variant=name,
        backend=None,
        point={},
        measured_point={},
        parameters={},
        baseline_dir=str(test_file.parent / "baselines"),
        baseline_name=".".join(module.split("/")) if shared_folder else test_file.stem,
    )
