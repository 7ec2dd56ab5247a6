"""Classifies instructions by their opcode.

Names and tables are those of "Instruction Set Reference" in NVIDIA's "CUDA Binary Utilities" (Turing to
Blackwell). Five decisions are ours:

- An instruction is in one class. DMMA is `fp64`, since a double must show; MUFU.RCP64H and RSQ64H, by which a
  division or root of doubles begins, too. All other MUFU are `special`.
- F2F, I2F and their like stay where NVIDIA's tables have them, in `conversion`, also to and from doubles.
- An instruction of the uniform datapath (UIADD3) is in the class of what it does (IADD3).
- An address that may be in any memory (LD), textures, surfaces and bulk copies are `global`.
- Moves are `other`, with IMAD.MOV and HFMA2 of zeros, by which the compiler loads a constant into a register.
"""

from __future__ import annotations

import re

PADDING = "padding"
OTHER = "other"

_TABLES = {
    "fp64": "DADD DFMA DMMA DMNMX DMUL DSET DSETP",
    "fp32": "FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FHADD FHFMA FMNMX FMNMX3 FMUL FMUL2 FMUL32I FSEL FSET"
    " FSETP FSWZADD",
    "fp16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2",
    "integer": "BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I"
    " ISETP LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3",
    "tensor": "BGMMA BMMA HGMMA HMMA IGMMA IMMA OMMA QGMMA QMMA LDT LDTM STT STTM",
    "special": "MUFU",
    "conversion": "F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP",
    "global": "LD LDG LDGMC LDGSTS ST STG SULD SUST TEX TLD TLD4 TXD UBLKCP UBLKPF UTMALDG UTMAPF UTMASTG",
    "shared": "LDS LDSM STAS STS STSM",
    "local": "LDL STL",
    "atomic": "ATOM ATOMG ATOMS RED REDAS REDG SUATOM SURED UBLKRED UTMAREDG",
    "barrier": "ACQBULK ARRIVES BAR CGAERRBAR DEPBAR ERRBAR FENCE LDGDEPBAR MEMBAR SYNCS UCGABAR_ARV"
    " UCGABAR_WAIT UTCBAR UTMACMDFLUSH WARPGROUP WARPSYNC",
    "control": "BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL ELECT ENDCOLLECTIVE EXIT JMP JMX JMXU KILL"
    " NANOSLEEP PREEXIT RET RPCMOV YIELD",
    PADDING: "NOP",
}
_CLASSES = {name: kind for kind, names in _TABLES.items() for name in names.split()}
_SPECIAL = (
    (re.compile(r"MUFU\.(RCP|RSQ)64H\b"), "fp64"),
    (re.compile(r"UTC\w*MMA\b"), "tensor"),  # the fifth generation: UTCHMMA, UTCIMMA, UTCQMMA, UTCOMMA
    (re.compile(r"IMAD\.MOV\b|HFMA2\b\S* R\d+,-RZ,RZ,"), OTHER),
)


def class_of(opcode: str, operands: str = "") -> str:
    """Returns the class of an instruction such as `FADD.FTZ R0,R1,R2`; `other` for an unknown opcode."""
    special = next((kind for words, kind in _SPECIAL if words.match(f"{opcode} {operands}")), None)
    name = opcode.partition(".")[0]
    return special or _CLASSES.get(name) or _CLASSES.get(name.removeprefix("U"), OTHER)
