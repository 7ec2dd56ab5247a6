"""Facts about kernels that ptxas makes here; what is said if a tool is missing or prints something else."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from pytest_gpukern.code import disassembly
from pytest_gpukern.code.disassembly import BinaryTool, DisassemblyError, class_of, facts, tool
from pytest_gpukern.code.launches import Compiled
from pytest_gpukern.gpu import cubin

try:
    MISSING = "" if all(map(tool, ("ptxas", "cuobjdump", "nvdisasm"))) else "a tool is missing"
except DisassemblyError as error:
    MISSING = str(error)
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)
every_architecture = pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])

FAT = range(48)  # more values at once than 24 registers hold
ARRAY_BYTES = 80
ARRAY = f".local .align 4 .b8 a[{ARRAY_BYTES}];"
FILL = "".join(f"st.volatile.local.f32 [a+{at}], %f1;" for at in range(0, ARRAY_BYTES, 4))
PICK = "mov.u64 %rd2, a; add.s64 %rd2, %rd2, %rd3; ld.volatile.local.f32 %f1, [%rd2];"
LOAD, STORE = "ld.global.f32 %f1, [%rd1];", "st.global.f32 [%rd1], %f1;"
MIX = "".join(f"fma.rn.f32 %f{i}, %f{i}, %f{(7 * i + 3) % 48}, %f{(i + 1) % 48};" for i in FAT)
LOADS = "".join(f"ld.global.f32 %f{i}, [%rd1+{4096 * i}];" for i in FAT)
SPILLS = LOADS + 2 * MIX + "".join(f"st.global.f32 [%rd1+{4096 * i}], %f{i};" for i in FAT)
BODIES = {
    "neither": LOAD + "mul.f32 %f1, %f1, 0f3FC00000;" + STORE,
    "double": LOAD + "cvt.f64.f32 %d1, %f1; mul.f64 %d1, %d1, %d1; cvt.rn.f32.f64 %f1, %d1;" + STORE,
    "array": ARRAY + LOAD + FILL + PICK + STORE,
    "spills": SPILLS,
    "both": ARRAY + LOAD + FILL + SPILLS + PICK + STORE,
    "shares": ".shared .align 4 .b8 s[512];" + LOAD + "st.shared.f32 [s], %f1; bar.sync 0;"
    "ld.shared.f32 %f1, [s+4];" + STORE,
    "calls": LOAD + "{ .param .f32 x; .param .f32 y; st.param.f32 [x], %f1; call (y), helper, (x);"
    "ld.param.f32 %f1, [y]; }" + STORE,
}
HELPER = """.func (.param .f32 out) helper(.param .f32 in) { .pragma "noinline"; .reg .f32 %f<3>;
ld.param.f32 %f1, [in]; sin.approx.f32 %f1, %f1; st.param.f32 [out], %f1; ret; }\n"""


def kernel(name, body=None):
    return f""".visible .entry {name}(.param .u64 p) {{ .reg .f32 %f<52>; .reg .f64 %d<3>; .reg .b64 %rd<5>;
ld.param.u64 %rd1, [p]; ld.global.u64 %rd3, [%rd1+8]; {body or BODIES[name]} ret; }}\n"""


ALL = "".join(map(kernel, BODIES))


@functools.cache
def assembled(text=ALL, architecture="sm_90", *options):
    """Returns the cubin and what `ptxas -v` said of it."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(f".version 9.1\n.target {architecture}\n.address_size 64\n{HELPER}{text}")
        command = [tool("ptxas").path, "-v", f"-arch={architecture}", *options, source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return target.read_bytes(), done.stderr


def facts_of(image, entry, architecture="sm_90", block=(128, 1, 1), shared_bytes=0):
    return facts(Compiled(image, entry, block, shared_bytes), entry, architecture, (10, 1, 1))


@needs_tools
@pytest.mark.parametrize("name", ["neither", "array", "spills", "both"])
def test_spilled_registers_are_told_apart_from_local_arrays(name):
    image, said = assembled(ALL, "sm_90", "-maxrregcount=24")
    known = facts_of(image, name)
    sizes = re.search(rf"properties for {name}\s+(\d+)\D+(\d+)\D+(\d+).*\n.*Used (\d+) registers", said)
    frame, stores, _, registers = map(int, sizes.groups())
    rest = frame - ARRAY_BYTES if name in ("array", "both") else frame
    assert (known.registers, known.stack_bytes, known.local_bytes) == (registers, frame, frame)
    assert (known.spill_bytes > 0) == (stores > 0) == (name in ("spills", "both"))
    assert rest - 48 <= known.spill_bytes <= min(rest, stores)


@needs_tools
def test_the_marks_of_the_tool_are_the_bytes_that_ptxas_reports(tmp_path):
    image, said = assembled(ALL, "sm_90", "-maxrregcount=24")
    (tmp_path / "kernel.cubin").write_bytes(image)
    _, functions = json.loads(tool("nvdisasm").output("-json", "-annotate", str(tmp_path / "kernel.cubin")))
    for function in functions:
        moved = {"STL": 0, "LDL": 0}
        for each in function["sass-instructions"]:
            if "annotations" in each:
                moved[each["opcode"][:3]] += {"64": 8, "128": 16}.get(each["opcode"].split(".")[-1], 4)
        reported = re.search(rf"properties for {function['function-name']}\s.*frame, (\d+)\D+(\d+)", said)
        assert [*moved.values()] == [int(count) for count in reported.groups()]


@needs_tools
@every_architecture
def test_a_stray_double_shows(architecture):
    image, _ = assembled(ALL, architecture)
    right = dict(facts_of(image, "neither", architecture).instructions)
    stray = dict(facts_of(image, "double", architecture).instructions)
    assert (right["fp32"], right.get("fp64")) == (1, None)
    assert (stray["fp64"], stray["conversion"]) == (1, 2)


@needs_tools
@every_architecture
def test_shared_memory_is_static_and_dynamic_without_what_the_driver_reserves(architecture):
    image, _ = assembled(ALL, architecture)
    assert facts_of(image, "shares", architecture, shared_bytes=256).shared_bytes == 768
    assert facts_of(image, "neither", architecture).shared_bytes == 0


@needs_tools
def test_the_launch_and_the_code_are_in_the_facts():
    image, _ = assembled()
    known = facts_of(image, "shares", block=(1024, 1, 1))
    assert known.machine_code_sha256 == f"code:{cubin.code_sha256(image)}"
    assert (known.symbol, known.grid, known.block) == ("shares", (10, 1, 1), (1024, 1, 1))
    assert known.code_bytes == 16 * sum(dict(known.instructions).values())
    assert {("shared", 2), ("barrier", 1), ("global", 2)} <= set(known.instructions)
    assert (known.occupancy, known.blocks_per_sm) == (1, 2)
    assert facts_of(image, "shares", "sm_130").occupancy is None


@needs_tools
def test_a_function_in_the_module_counts_for_the_kernel_that_calls_it():
    image, _ = assembled(kernel("calls") + kernel("neither"), "sm_90", "-c")  # leaves functions apart
    assert ("special", 1) in facts_of(image, "calls").instructions
    assert "special" not in dict(facts_of(image, "neither").instructions)


def printing(tmp_path, printed):
    (tmp_path / "printed").write_text(printed)
    (tmp_path / "changed").write_text(f"#!/bin/sh\ncat {tmp_path}/printed\n")
    (tmp_path / "changed").chmod(0o700)
    return BinaryTool(str(tmp_path / "changed"), tool("nvdisasm").version)


def use_instead(monkeypatch, name, other):
    disassembly._read.cache_clear()
    monkeypatch.setattr(disassembly, "tool", lambda wanted: other if wanted == name else tool(wanted))


def listed(**changed):
    both = [{"opcode": "FADD"}, {"opcode": "NOP"}]
    return json.dumps([{}, [{"function-name": "neither", "length": 32, "sass-instructions": both} | changed]])


@needs_tools
@pytest.mark.parametrize(
    "printed",
    [
        "",
        "Usage  : nvdisasm [options] <image file>",
        "[{}, []]",
        listed(length=64),
        listed(**{"sass-instructions": []}),
        listed(**{"function-name": "other"}),
        listed(**{"sass-instructions": [{"mnemonic": "FADD"}] * 2}),
        listed(**{"sass-instructions": [{"opcode": "@P0 FADD R0"}] * 2}),
        listed(**{"sass-instructions": [{"opcode": "STL", "annotations": [{"info": "SpillRefill"}]}] * 2}),
    ],
)
def test_another_form_of_disassembly_is_an_error_that_names_the_tool(tmp_path, monkeypatch, printed):
    use_instead(monkeypatch, "nvdisasm", printing(tmp_path, printed))
    with pytest.raises(DisassemblyError, match=r"changed \(\d+\.\d+\.\d+\) printed .*pip install"):
        facts_of(assembled()[0], "neither")
    use_instead(monkeypatch, "nvdisasm", printing(tmp_path, listed()))
    assert facts_of(assembled()[0], "neither").instructions == (("fp32", 1),)


@needs_tools
@pytest.mark.parametrize("usage", ["", "REG:8 STACK:0 SHARED:16 LOCAL:0", "REG:8 STACK:0 LOCAL:0"])
def test_another_form_of_resource_usage_is_an_error(tmp_path, monkeypatch, usage):
    use_instead(monkeypatch, "cuobjdump", printing(tmp_path, f" Function neither:\n  {usage}\n"))
    with pytest.raises(DisassemblyError, match="printed what we do not understand"):
        facts_of(assembled(kernel("neither"))[0], "neither")


@needs_tools
def test_what_no_tool_takes_is_an_error():
    with pytest.raises(DisassemblyError, match="what neither compiled to for sm_90 is no cubin"):
        facts_of(b"no ELF", "neither")
    with pytest.raises(DisassemblyError, match=r"nvdisasm .* fails with -no-such-option: .*pip install"):
        tool("nvdisasm").output("-no-such-option")


def test_a_missing_tool_is_told_with_what_installs_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(disassembly, "cuda_program", lambda name: None)
    with pytest.raises(DisassemblyError, match=r"nvdisasm is not in NVIDIA's wheels.*pip install .*\[code\]"):
        tool.__wrapped__("nvdisasm")


def test_tools_that_cannot_mark_spills_are_refused_at_the_start(monkeypatch):
    monkeypatch.setattr(disassembly, "tool", lambda name: BinaryTool(name, "13.4.49"))
    with pytest.raises(DisassemblyError, match=r"version 13\.4\.49, and 13\.4\.92 is needed: pip install"):
        disassembly.require_tools()
    monkeypatch.setattr(disassembly, "tool", lambda name: BinaryTool(name, "13.4.92"))
    disassembly.require_tools()


@pytest.mark.parametrize(
    ("kind", "instructions"),
    [
        ("fp64", "DFMA R0,R2,R4,R6; MUFU.RCP64H R5,R7"),
        ("fp16", "HFMA2 R0,R1,R2,R3; HADD2.F32 R0,-RZ,R1.H0_H0"),
        ("conversion", "F2F.F64.F32 R4,R2; I2FP.F32.S32 R0,R1"),
        ("integer", "IMAD.WIDE R2,R5,0x4,R2; UIADD3 UR4,UR5,0x1,URZ"),
        ("tensor", "HGMMA.64x64x16.F32 R24,gdesc[UR4],R24; UTCHMMA gdesc[UR4],gdesc[UR6],tmem[UR8]"),
        ("other", "HFMA2.MMA R3,-RZ,RZ,1.875,0; IMAD.MOV.U32 R4,RZ,RZ,R5; FROBNICATE.X R0"),
    ],
)
def test_instructions_are_classified_by_their_opcodes(kind, instructions):
    assert {class_of(*each.split(" ")) for each in instructions.split("; ")} == {kind}
