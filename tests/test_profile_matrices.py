"""Matrix instructions of NVIDIA's and AMD's profiles, against the makers' assemblers."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from emulation.require import require

from speccc.targets.devices import ARCHS
from speccc.targets.devices.amd import CDNA4, RDNA4
from speccc.targets.devices.nvidia import AMPERE, FP8, SM_120, TCGEN05, WGMMA
from speccc.targets.devices.profile import Arch, Matrix
from speccc.targets.triton_build import ROCM_WAVES

CUDA = {name.removeprefix("cuda:"): a for name, a in ARCHS.items() if a.backend == "cuda"}
TYPES = {"i8": "s8", "i4": "s4", "i32": "s32"}
ROCM = {a.name: a for a in ARCHS.values() if a.backend == "rocm"}
WMMA_TYPES = {"i8": "iu8", "i4": "iu4", "e4m3": "fp8_fp8"}
F8F6F4 = {"e4m3": 0, "e2m1": 4}
BITS = {"i4": 4, "e2m1": 4, "i8": 8, "e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "tf32": 32}
# (operand, elements of k that share a scale) -> kind with scales, and the scales' type
SCALED = {
    ("e2m1", 16): ("mxf4nvf4.block_scale.scale_vec::4X", "ue4m3"),
    ("e2m1", 32): ("mxf4nvf4.block_scale.scale_vec::2X", "ue8m0"),
    ("e4m3", 32): ("mxf8f6f4.block_scale.scale_vec::1X", "ue8m0"),
}
KINDS = {"i8": "i8", "f16": "f16", "bf16": "f16", "e4m3": "f8f6f4"}
# What follows the operands of wgmma: signs of the products, and for halves whether transposed.
WGMMA_TAIL = {"i8": "1", "e4m3": "1, 1, 1", "f16": "1, 1, 1, 0, 0", "bf16": "1, 1, 1, 0, 0"}
HEAD = """.version 8.8
.target {target}
.address_size 64
.visible .entry k() {{
.reg .f32 %f<256>; .reg .b32 %r<256>; .reg .b64 %d<3>; .reg .b16 %h<5>; .reg .pred %p<2>;
{line}
ret; }}
"""


def names(prefix: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{prefix}{first + i}" for i in range(count)) + "}"


def operands(m: Matrix) -> tuple[str, str, str]:
    """The accumulator, and the types of all as an instruction's name ends with them."""
    a, b, acc = (TYPES.get(t, t) for t in (m.a, m.b, m.acc))
    return "f" if m.acc == "f32" else "r", f"{acc}.{a}.{b}", acc


def mma(m: Matrix) -> str:
    """A warp's: each of 32 lanes has its part of all three in registers."""
    prefix, types, acc = operands(m)
    sums = names(prefix, m.m * m.n // 32 // (2 if m.acc == "f16" else 1))
    a, b = (
        names("r", rows * m.k * BITS[t] // 1024, first)
        for rows, t, first in ((m.m, m.a, 100), (m.n, m.b, 120))
    )
    kind = stype = scales = ""
    if m.scale is not None:
        kind, stype = (f".kind::{SCALED[m.a, m.scale][0]}", f".{SCALED[m.a, m.scale][1]}")
        scales = ", %r140, {%h1, %h2}, %r141, {%h3, %h4}"
    shape = f"m{m.m}n{m.n}k{m.k}.row.col"
    return f"mma.sync.aligned.{shape}{kind}.{types}.{acc}{stype} {sums}, {a}, {b}, {sums}{scales};"


def wgmma(m: Matrix) -> str:
    """Of four warps; a and b by descriptors of shared memory."""
    prefix, types, _ = operands(m)
    sums = names(prefix, m.m * m.n // 128)
    shape = f"m{m.m}n{m.n}k{m.k}"
    return f"wgmma.mma_async.sync.aligned.{shape}.{types} {sums}, %d1, %d2, {WGMMA_TAIL[m.a]};"


def tcgen05(m: Matrix) -> str:
    """Its shape is in a register; the kind says which there are."""
    kind = KINDS[m.a] if m.scale is None else SCALED[m.a, m.scale][0]
    scales = "" if m.scale is None else ", [%r3], [%r4]"
    return f"tcgen05.mma.cta_group::1.kind::{kind} [%r1], %d1, %d2, %r2{scales}, %p1;"


WRITTEN = {16: mma, 64: wgmma, 128: tcgen05}
"""By rows of the instruction."""


def refused(arch: str, m: Matrix) -> str:
    """What the assembler says against an instruction; empty when it takes it."""
    triton = pytest.importorskip("triton")
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    target = arch + ("a" if int(arch.removeprefix("sm_")) >= 90 else "")
    done = subprocess.run(
        [program, "-arch", target, "-", "-o", "/dev/null"],
        input=HEAD.format(target=target, line=WRITTEN[m.m](m)),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("arch", CUDA)
def test_an_architecture_has_the_instructions_of_its_profile(arch: str) -> None:
    require("triton")
    matrix = CUDA[arch].matrix
    assert matrix is not None
    for m in matrix.value:
        assert refused(arch, m) == "", m


@pytest.mark.parametrize(
    ("arch", "m"),
    [
        ("sm_86", FP8[0]),
        ("sm_89", WGMMA[0]),
        ("sm_90", TCGEN05[0]),
        ("sm_100", WGMMA[0]),
        ("sm_103", TCGEN05[0]),  # the one of int8
        ("sm_100", SM_120[0]),
        ("sm_120", TCGEN05[1]),
        ("sm_80", replace(AMPERE[0], k=64)),
    ],
)
def test_what_a_profile_lacks_is_refused(arch: str, m: Matrix) -> None:
    """So that the test above can fail."""
    require("triton")
    matrix = CUDA[arch].matrix
    assert matrix is not None
    assert m not in matrix.value
    assert "error" in refused(arch, m)


def amd_line(arch: str, m: Matrix) -> str:
    """The instruction: a lane holds its part of each; on RDNA 3 both halves of a wave hold all."""
    wave, halves = ROCM_WAVES[arch], 2 if arch.startswith("gfx11") else 1
    wide = 32 if m.acc != "f16" or halves == 2 else 16
    acc, a, b = (
        registers(first, count // 32 // wave)
        for first, count in (
            (0, m.m * m.n * wide),
            (32, m.m * m.k * BITS[m.a] * halves),
            (44, m.n * m.k * BITS[m.b] * halves),
        )
    )
    shape, tail = f"{m.m}x{m.n}x{m.k}", ""
    if wave == 32:
        name = f"v_wmma_{m.acc}_{shape}_{WMMA_TYPES.get(m.a, m.a)}"
    elif m.scale is None:
        name = f"v_mfma_{m.acc}_{shape}_{m.a}"
    else:
        name, kind = f"v_mfma_scale_f32_{shape}_f8f6f4", F8F6F4[m.a]
        tail = f", v60, v61 op_sel_hi:[0,0,0] cbsz:{kind} blgp:{kind}"
    return f"{name} {acc}, {a}, {b}, {acc}{tail}\n"


def registers(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def assemble(line: str, arch: str) -> None:
    """RuntimeError for what the chip does not have."""
    from triton.backends.amd.compiler import assemble_amdgcn

    assemble_amdgcn(line, arch, "")


@pytest.mark.parametrize("arch", ROCM.values(), ids=lambda a: a.name)
def test_an_amd_chip_has_the_instructions_of_its_profile(arch: Arch) -> None:
    require("triton")
    assert arch.matrix is not None
    for m in arch.matrix.value:
        assemble(amd_line(arch.name, m), arch.name)
    four = "v_dot4_i32_i8" if ROCM_WAVES[arch.name] == 64 else "v_dot4_i32_iu8"
    assemble(f"{four} v0, v1, v2, v0\n", arch.name)


@pytest.mark.parametrize(
    ("arch", "m"), [("gfx942", CDNA4[0]), ("gfx942", CDNA4[-1]), ("gfx1100", RDNA4[-1])]
)
def test_what_an_amd_profile_lacks_is_refused(arch: str, m: Matrix) -> None:
    require("triton")
    matrix = ROCM[arch].matrix
    assert matrix is not None
    assert m not in matrix.value
    with pytest.raises(RuntimeError, match="assembler rejected"):
        assemble(amd_line(arch, m), arch)
