"""Machine code comes back from its file as recorded, and the record says what changed and what grew."""

from __future__ import annotations

import functools

import pytest
from made_up_records import case_of, store_of
from msgspec import structs

from pytest_gpukern.cli import main as cli
from pytest_gpukern.code.record import growth, judged
from pytest_gpukern.values.result import CompiledCode, Finding, KernelFacts, Verdict
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind

KERNEL = KernelFacts(
    "scale", 30, 0, 0, "code:beef", grid=(4, 1, 1), block=(128, 1, 1), symbol="_Z5scale", blocks_per_sm=16,
    occupancy=1.0, spill_bytes=0, stack_bytes=0, code_bytes=512, instructions=(("fp32", 2), ("load", 1)),
)  # fmt: skip
FILE = "scaling.code.json"
DOUBLES = (("fp32", 1), ("fp64", 1), ("load", 1))


def code(*kernels, compiler="numba-cuda 0.20", **changes):
    return CompiledCode(compiler, kernels or (structs.replace(KERNEL, **changes),))


def case(folder, n=8):
    made = case_of(folder, name="scaling", n=n)
    return structs.replace(made, id=f"scaling/numba.plain/n={n}", backend="numba", variant="plain")


judge = functools.partial(judged, case("."), "sm_90")


def grown(now, before):
    return list(growth("sm_90", now, before))


def write(folder, n=8, *, replaces=False, **of_architectures):
    return store_of("update" if replaces else "create").write_code([(case(folder, n), of_architectures)])


def read(folder, n=8):
    return store_of("compare").code(case(folder, n))


def registers(folder, n=8):
    return {name: of.kernels[0].registers for name, of in read(folder, n).items()}


def test_code_comes_back_without_what_a_machine_decides_and_equal_kernels_once(tmp_path):
    assert write(tmp_path, sm_90=code(KERNEL, structs.replace(KERNEL, grid=(9, 1, 1)))) == [tmp_path / FILE]
    kept = structs.replace(KERNEL, grid=None, symbol=None, blocks_per_sm=None)
    assert read(tmp_path) == {"sm_90": code(kept)}


def test_a_case_that_is_compiled_to_the_same_as_another_is_written_as_like_it_until_it_differs(tmp_path):
    for n in (8, 9):
        write(tmp_path, n, sm_90=code())
    assert '"like": "scaling/numba.plain/n=8"' in (tmp_path / FILE).read_text()
    assert read(tmp_path, 9) == read(tmp_path, 8) != {}
    write(tmp_path, 8, replaces=True, sm_90=code(registers=53))
    assert [registers(tmp_path, n) for n in (8, 9)] == [{"sm_90": 53}, {"sm_90": 30}]


def test_what_is_pruned_leaves_its_code_to_those_that_were_like_it(tmp_path, capsys):
    for n in (8, 9):
        write(tmp_path, n, sm_90=code())
    file, before = tmp_path / FILE, (tmp_path / FILE).read_text()

    def prune(case_id, *options):
        return cli.main(["baseline", "prune", str(file), "--case", case_id, "--write-in-ci", *options])

    assert prune("*n=8", "--dry-run") == 0
    assert file.read_text() == before
    assert prune("*n=8") == 0
    assert capsys.readouterr().out.splitlines()[1] == "removed scaling/numba.plain/n=8"
    assert (registers(tmp_path, 8), registers(tmp_path, 9)) == ({}, {"sm_90": 30})
    assert prune("*") == 0
    assert not file.exists()


def test_creating_only_adds_updating_replaces_and_what_does_not_compile_is_not_recorded(tmp_path):
    write(tmp_path, sm_90=code())
    write(tmp_path, sm_80=code(registers=40), sm_90=code(registers=53))
    assert registers(tmp_path) == {"sm_80": 40, "sm_90": 30}
    write(tmp_path, replaces=True, sm_90=code(registers=53))
    refused = CompiledCode(refused="no such instruction")
    assert write(tmp_path, replaces=True, sm_75=refused, sm_80=refused) == []
    assert registers(tmp_path) == {"sm_80": 40, "sm_90": 53}


BAD = [
    ('"registers": 30', '"registers": "many"', ".kernels[0].registers`", "--gpukern-baseline=create"),
    ('"scale"', "", "", "Restore the file from version control"),
    ('"schema": 1', '"schema": 2, "more": 1', "schema: ", "Upgrade pytest-gpukern"),
    ('"problem": "scaling"', '"problem": "other"', "problem: ", "Give the file its own name back"),
    ('"cases": {', '"cases": {"n=9": {"like": "n=7"},', "cases['n=9'].like: ", "Restore"),
]


@pytest.mark.parametrize(("old", "new", "where", "remedy"), BAD)
def test_a_bad_file_is_refused_with_file_field_and_remedy(tmp_path, old, new, where, remedy):
    write(tmp_path, sm_90=code())
    text = (tmp_path / FILE).read_text().replace(old, new)
    (tmp_path / FILE).write_text(text)
    for access in (read, write):
        with pytest.raises(FileError) as error:
            access(tmp_path)
        assert all(text in str(error.value) for text in (f"{tmp_path / FILE}: ", where, remedy))
    assert (tmp_path / FILE).read_text() == text


CHANGES = [
    ({"registers": 31}, "registers 30 → 31", False),
    ({"registers": 53, "occupancy": 0.75}, "registers 30 → 53, occupancy 100 → 75 %", True),
    ({"registers": 28, "occupancy": 0.75}, "registers 30 → 28, occupancy 100 → 75 %", False),
    ({"spill_bytes": 8}, "spills 0 → 8 B", True),
    ({"local_bytes": 16}, "local memory 0 → 16 B", True),
    ({"shared_bytes": 32}, "shared memory 0 → 32 B", True),
    ({"instructions": DOUBLES, "code_bytes": 9}, "FP64 instructions 0 → 1, FP32 instructions 2 → 1", True),
    ({"instructions": (("fp32", 9), ("load", 1))}, "FP32 instructions 2 → 9", False),
    ({"machine_code_sha256": "code:cafe"}, "other instructions, the same resources", False),
    ({"name": "more"}, "new: kernel more, gone: kernel scale", False),
]


def test_a_kernel_of_a_new_name_is_compared_with_the_one_that_is_gone():
    (found,) = grown(code(name="more", spill_bytes=8), code())
    assert found.text == "more sm_90: new: kernel more, gone: kernel scale, spills 0 → 8 B"


@pytest.mark.parametrize(("changes", "told", "grew"), CHANGES)
def test_changes_are_told_and_growth_is_what_may_cost_time_with_one_compiler(changes, told, grew):
    verdict = Verdict(VerdictKind.CHANGED, f"numba.plain sm_90: {told}")
    assert judge(code(**changes), code()) == verdict
    assert grown(code(**changes), code()) == [Finding("resources", f"scale sm_90: {told}")] * grew
    newer = code(compiler="numba-cuda 0.21", **changes)
    assert judge(newer, code()).reason == f"numba-cuda 0.20 → numba-cuda 0.21: {verdict.reason}"
    assert not grown(newer, code()) + grown(newer, None)
    assert not grown(code(instructions=(("fp64", 9),)), code(instructions=DOUBLES)), "there were some"


def test_code_is_new_the_same_whoever_compiled_it_or_invalid_if_it_no_longer_compiles(tmp_path):
    assert judge(code(), None).kind is VerdictKind.NEW
    write(tmp_path, sm_90=code())
    same = code(compiler="numba-cuda 0.21", grid=(9, 1, 1))
    assert judge(same, read(tmp_path)["sm_90"]).kind is VerdictKind.SAME_CODE
    refused = judge(CompiledCode(refused="ptxas: no"), read(tmp_path)["sm_90"])
    assert refused == Verdict(VerdictKind.INVALID, "compiled before, and does not any more: ptxas: no")
