"""Facts about kernels that ptxas makes here, and what is said if a tool is missing or prints something else."""

from __future__ import annotations

import json
import re

import pytest

from pytest_gpukern.code import disassembly, tools
from pytest_gpukern.code.disassembly import Store, facts
from pytest_gpukern.code.launches import Compiled
from pytest_gpukern.code.opcodes import class_of
from pytest_gpukern.code.tools import DisassemblyError, Tool, ToolsMissing, tool
from pytest_gpukern.gpu import cubin

try:
    PTXAS = tool("ptxas")
    MISSING = "; ".join(name for name in ("cuobjdump", "nvdisasm") if not tool(name))
except ToolsMissing as error:
    PTXAS, MISSING = None, str(error)
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)

FAT = 48
ARRAY_BYTES = 80
LOAD = "".join(f"ld.global.f32 %f{i}, [%rd1+{4096 * i}];\n" for i in range(FAT))
MIX = "".join(f"fma.rn.f32 %f{i}, %f{i}, %f{(7 * i + 3) % FAT}, %f{(i + 1) % FAT};\n" for i in range(FAT))
STORE = "".join(f"st.global.f32 [%rd1+{4096 * i}], %f{i};\n" for i in range(FAT))
FILL = "".join(f"ld.global.f32 %f50, [%rd1+{64 * i}];\nst.local.f32 [a+{4 * i}], %f50;\n" for i in range(20))
PICK = (
    "mov.u64 %rd2, a;\nadd.s64 %rd2, %rd2, %rd3;\nld.local.f32 %f51, [%rd2];\nst.global.f32 [%rd1], %f51;\n"
)
ARRAY = f".local .align 4 .b8 a[{ARRAY_BYTES}];\n"
SPILLS = LOAD + MIX + MIX + STORE
BODIES = {
    "neither": "ld.global.f32 %f1, [%rd1];\nmul.f32 %f1, %f1, 0f3FC00000;\nst.global.f32 [%rd1], %f1;\n",
    "double": "ld.global.f32 %f1, [%rd1];\ncvt.f64.f32 %d1, %f1;\nmul.f64 %d1, %d1, 0d3FF199999999999A;\n"
    "cvt.rn.f32.f64 %f1, %d1;\nst.global.f32 [%rd1], %f1;\n",
    "array": ARRAY + FILL + PICK,
    "spills": SPILLS,
    "both": ARRAY + FILL + SPILLS + PICK,
    "shares": ".shared .align 4 .b8 s[512];\nld.global.f32 %f1, [%rd1];\nst.shared.f32 [s], %f1;\nbar.sync 0;\n"
    "ld.shared.f32 %f2, [s+4];\nst.global.f32 [%rd1], %f2;\n",
    "calls": "ld.global.f32 %f1, [%rd1];\n{ .param .f32 p; .param .f32 q;\nst.param.f32 [p], %f1;\n"
    "call (q), helper, (p);\nld.param.f32 %f1, [q]; }\nst.global.f32 [%rd1], %f1;\n",
}
HELPER = """.func (.param .f32 out) helper(.param .f32 in) { .pragma "noinline"; .reg .f32 %f<3>;
ld.param.f32 %f1, [in]; sin.approx.f32 %f1, %f1; st.param.f32 [out], %f1; ret; }
"""


def kernel(name, body=None):
    return f""".visible .entry {name}(.param .u64 p) {{ .reg .f32 %f<52>; .reg .f64 %d<3>; .reg .b64 %rd<5>;
ld.param.u64 %rd1, [p];\nld.global.u64 %rd3, [%rd1+8];\n{BODIES[body or name]}ret; }}\n"""


def assembled(tmp_path, text, architecture="sm_90", *options):
    """Returns the cubin and what `ptxas -v` said of it."""
    source, target = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    target.unlink(missing_ok=True)
    head = f".version 8.7\n.target {architecture}\n.address_size 64\n"
    source.write_text(head + HELPER + text)
    script = tmp_path / "ptxas"  # ptxas says it on the error stream
    script.write_text(f'#!/bin/sh\nexec {PTXAS.path} "$@" 2>&1\n')
    script.chmod(0o700)
    said = Tool(str(script), PTXAS.version).output(
        "-v", f"-arch={architecture}", *options, str(source), "-o", str(target)
    )
    return target.read_bytes(), said


@pytest.fixture
def facts_of(tmp_path):
    def of(image, entry, architecture="sm_90", block=(128, 1, 1), shared_bytes=0, store=None):
        compiled = Compiled(image, entry, block, shared_bytes)
        return facts(compiled, entry, architecture, (10, 1, 1), store or Store(tmp_path / "store"))

    return of


@needs_tools
@pytest.mark.parametrize("name", ["neither", "array", "spills", "both"])
def test_spilled_registers_are_told_apart_from_local_arrays(tmp_path, facts_of, name):
    image, said = assembled(tmp_path, kernel(name), "sm_90", "-maxrregcount=24")
    known = facts_of(image, name)
    frame, stores, loads = map(
        int, re.search(rf"properties for {name}\s+(\d+)\D+(\d+)\D+(\d+)", said).groups()
    )
    array = ARRAY_BYTES if name in ("array", "both") else 0
    assert known.stack_bytes == known.local_bytes == frame
    assert (known.spill_bytes > 0) == (stores > 0) == (name in ("spills", "both"))
    assert known.spill_bytes <= min(frame - array, stores)
    assert known.registers == int(re.search(r"Used (\d+) registers", said)[1])
    assert marked(tmp_path / "kernel.cubin") == {"STL": stores, "LDL": loads}


def marked(path):
    """Bytes that instructions move which nvdisasm marks: what `spill_bytes` rests on."""
    printed = json.loads(tool("nvdisasm").output("-json", "-annotate", str(path)))
    moved = {"STL": 0, "LDL": 0}
    for each in printed[1][0]["sass-instructions"]:
        if {"type": "program-analysis", "info": "SpillRefill"} in each.get("annotations", []):
            opcode, _, width = each["opcode"].partition(".")
            moved[opcode] += int(width or 32) // 8
    return moved


@needs_tools
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_a_stray_double_shows(tmp_path, facts_of, architecture):
    right, stray = (
        facts_of(assembled(tmp_path, kernel(name), architecture)[0], name, architecture).instructions
        for name in ("neither", "double")
    )
    assert right["fp32"] == 1
    assert "fp64" not in right
    assert (stray["fp64"], stray["conversion"]) == (1, 2)


@needs_tools
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_shared_memory_is_static_and_dynamic_without_what_the_driver_reserves(
    tmp_path, facts_of, architecture
):
    image, _ = assembled(tmp_path, kernel("shares") + kernel("neither"), architecture)
    assert facts_of(image, "shares", architecture).shared_bytes == 512
    assert facts_of(image, "shares", architecture, shared_bytes=256).shared_bytes == 768
    assert facts_of(image, "neither", architecture).shared_bytes == 0


@needs_tools
def test_the_launch_and_the_code_are_in_the_facts(tmp_path, facts_of):
    image, _ = assembled(tmp_path, kernel("shares"))
    known = facts_of(image, "shares", block=(1024, 1, 1))
    assert known.machine_code_sha256 == f"code:{cubin.code_sha256(image)}"
    assert (known.symbol, known.grid, known.block) == ("shares", (10, 1, 1), (1024, 1, 1))
    assert known.code_bytes == 16 * sum(known.instructions.values())
    assert {"shared": 2, "barrier": 1, "global": 3}.items() <= known.instructions.items()
    assert (known.occupancy, known.blocks_per_sm) == (1, 2)
    assert facts_of(image, "shares", "sm_130").occupancy is None


@needs_tools
def test_a_function_in_the_module_counts_for_the_kernel_that_calls_it(tmp_path, facts_of):
    image, _ = assembled(tmp_path, kernel("calls") + kernel("neither"), "sm_90", "-c")
    assert facts_of(image, "calls").instructions["special"] == 1
    assert "special" not in facts_of(image, "neither").instructions


def broken(tmp_path, printed):
    """A tool that prints something else."""
    (tmp_path / "printed").write_text(printed)
    script = tmp_path / "nvdisasm"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/printed\n")
    script.chmod(0o700)
    return Tool(str(script), tool("nvdisasm").version)


def used_instead(monkeypatch, name, other):
    monkeypatch.setattr(disassembly, "tool", lambda wanted: other if wanted == name else tool(wanted))


@needs_tools
def test_only_what_is_not_in_the_store_is_disassembled(tmp_path, facts_of, monkeypatch):
    first, _ = assembled(tmp_path, kernel("neither"))
    renamed, _ = assembled(tmp_path, kernel("the_tenth_of_its_process", "neither"))
    changed, _ = assembled(tmp_path, kernel("neither", "double"))
    known = facts_of(first, "neither")
    used_instead(monkeypatch, "nvdisasm", broken(tmp_path, "no disassembly"))
    assert facts_of(first, "neither") == known
    assert facts_of(renamed, "the_tenth_of_its_process").instructions == known.instructions
    with pytest.raises(DisassemblyError, match="no disassembly"):
        facts_of(changed, "neither")


@needs_tools
@pytest.mark.parametrize(
    "damage", [lambda text: text[:40], lambda text: text.replace(b"1", b"2"), lambda _: b""]
)
def test_a_damaged_entry_is_made_again(tmp_path, facts_of, damage):
    image, _ = assembled(tmp_path, kernel("neither"))
    known = facts_of(image, "neither")
    (entry,) = (tmp_path / "store").iterdir()
    sound = entry.read_bytes()
    entry.write_bytes(damage(sound))
    assert facts_of(image, "neither") == known
    assert entry.read_bytes() == sound


@needs_tools
def test_a_store_that_cannot_be_written_is_none(tmp_path, facts_of):
    image, _ = assembled(tmp_path, kernel("neither"))
    (tmp_path / "file").write_text("in the way")
    assert facts_of(image, "neither", store=Store(tmp_path / "file")).registers > 0


def listed(**changed):
    function = {
        "function-name": "neither",
        "length": 32,
        "sass-instructions": [{"opcode": "FADD", "operands": "R0,R1,R2"}, {"opcode": "NOP"}],
    }
    return json.dumps([{}, [function | changed]])


@needs_tools
def test_what_the_tests_of_other_forms_change_is_understood(tmp_path, facts_of, monkeypatch):
    image, _ = assembled(tmp_path, kernel("neither"))
    used_instead(monkeypatch, "nvdisasm", broken(tmp_path, listed()))
    known = facts_of(image, "neither")
    assert (known.instructions, known.code_bytes) == ({"fp32": 1}, 16)


@needs_tools
@pytest.mark.parametrize(
    "printed",
    [
        "",
        "Usage  : nvdisasm [options] <image file>",
        "[{}]",
        "[{}, []]",
        listed(length=64),
        listed(length="32"),
        listed(**{"sass-instructions": []}),
        listed(**{"function-name": "other"}),
        listed(**{"sass-instructions": [{"mnemonic": "FADD"}, {"opcode": "NOP"}]}),
        listed(**{"sass-instructions": [{"opcode": "@P0 FADD R0"}, {"opcode": "NOP"}]}),
        listed(**{"sass-instructions": [{"opcode": "STL", "annotations": [{"info": "SpillRefill"}]}] * 2}),
    ],
)
def test_another_form_of_disassembly_is_an_error_that_names_the_tool(
    tmp_path, facts_of, monkeypatch, printed
):
    image, _ = assembled(tmp_path, kernel("neither"))
    used_instead(monkeypatch, "nvdisasm", broken(tmp_path, printed))
    with pytest.raises(
        DisassemblyError, match=rf"nvdisasm \({tool('nvdisasm').version}\) printed .*pip install"
    ):
        facts_of(image, "neither")


@needs_tools
@pytest.mark.parametrize(
    "printed",
    [
        "",
        " Function other:\n  REG:8 STACK:0 SHARED:0 LOCAL:0 TEXTURE:0\n",
        " Function neither:\n  REGISTERS:8 STACK:0 SHARED:0 LOCAL:0\n",
        " Function neither:\n  REG:8 STACK:0 SHARED:16 LOCAL:0\n",
    ],
)
def test_another_form_of_resource_usage_is_an_error(tmp_path, facts_of, monkeypatch, printed):
    image, _ = assembled(tmp_path, kernel("neither"))
    used_instead(monkeypatch, "cuobjdump", broken(tmp_path, printed))
    with pytest.raises(DisassemblyError, match="printed what we do not understand"):
        facts_of(image, "neither")


@needs_tools
def test_a_refusal_of_the_tool_is_told_in_its_words(tmp_path, facts_of):
    image, _ = assembled(tmp_path, kernel("neither"))
    with pytest.raises(DisassemblyError, match=r"cuobjdump .* fails with -res-usage: "):
        facts_of(image[: len(image) - 64], "neither")


def test_what_is_no_cubin_is_an_error(facts_of):
    with pytest.raises(DisassemblyError, match="what k compiled to for sm_90 is no cubin"):
        facts_of(b"no ELF", "k")


def test_a_missing_tool_is_told_with_what_installs_it(monkeypatch):
    for variable in ("PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(tools, "_places", lambda name: [])
    with pytest.raises(ToolsMissing, match=r"nvdisasm is not in NVIDIA's wheels.*pip install .*\[code\]"):
        tool.__wrapped__("nvdisasm")


@needs_tools
def test_a_toolkit_is_found_by_its_variable(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvdisasm").symlink_to(tool("nvdisasm").path)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)
    assert tool.__wrapped__("nvdisasm") == (str(tmp_path / "bin" / "nvdisasm"), tool("nvdisasm").version)


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("DFMA R0,R2,R4,R6", "fp64"),
        ("MUFU.RCP64H R5,R7", "fp64"),
        ("MUFU.RCP R5,R7", "special"),
        ("F2F.F64.F32 R4,R2", "conversion"),
        ("HFMA2 R0,R1,R2,R3", "fp16"),
        ("HFMA2.MMA R3,-RZ,RZ,1.875,0", "other"),
        ("IMAD.MOV.U32 R4,RZ,RZ,R5", "other"),
        ("UIADD3 UR4,UR5,0x1,URZ", "integer"),
        ("HGMMA.64x64x16.F32 R24,gdesc[UR4],R24", "tensor"),
        ("UTCHMMA gdesc[UR4],gdesc[UR6],tmem[UR8]", "tensor"),
        ("LDG.E R5,desc[UR4][R4.64]", "global"),
        ("ATOMS.ADD R2,[R3],R4", "atomic"),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "barrier"),
        ("FROBNICATE.X R0", "other"),
        ("U", "other"),
    ],
)
def test_instructions_are_classified_by_their_opcodes(instruction, kind):
    opcode, _, operands = instruction.partition(" ")
    assert class_of(opcode, operands) == kind
