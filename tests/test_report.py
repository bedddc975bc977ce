"""What is read from built kernels: resources and instructions, from files of every target."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from emulation.require import require
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import VerifyError
from speccc.ir.expr import Load, Var, lit, mul
from speccc.ir.plan import Loop, Plan, PlanBuf, Role, Step
from speccc.ir.tile import Alloc, Axis, Buf, For, Kernel, Map, Mem, RowTiles, Share
from speccc.ir.types import F16, F32, I32
from speccc.targets.build_error import BuildError
from speccc.targets.cubin import Resources, cubin_resources
from speccc.targets.report import KernelFacts, kernel_facts
from speccc.targets.spirv import MAGIC, opcode_counts, workgroup_bytes
from speccc.targets.traffic import requested_bytes
from speccc.targets.triton_build import TritonKernel, build_cuda, build_rocm

PTX = b"""
// mma.sync is only spoken of here
    mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};
    @%p1 wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r1}, %rd1, %rd2, 1;
    @%p2 tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [ %r1 + 0 ], %rd1, %rd2, %p3;
    @!%p12 dp4a.s32.s32 %r1, %r2, %r3, %r4;
    dp4a.s32.s32 %r1, %r2, %r3, %r4;
    add.s32 %dp4a, %r1, %r2;
"""
GCN = b"""
\tv_mfma_i32_16x16x32_i8 a[0:3], v[0:1], v[2:3], a[0:3]
\tv_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7]
\tv_dot4_i32_i8 v0, v1, v2, v0
\tv_dot4_i32_i8 v0, v1, v2, v0
; v_dot4_i32_i8 in a comment
amdhsa.kernels:
  - .agpr_count:     0
    .group_segment_fixed_size: 5120
    .sgpr_spill_count: 1
    .vgpr_count:     36
    .private_segment_fixed_size: 12
    .vgpr_spill_count: 2
"""


def test_ptx_counts_instructions_and_nothing_else() -> None:
    counts = kernel_facts({"ptx": PTX}).instructions
    expected = {"dp4a": 2, "mma.sync": 1, "wgmma.mma_async": 1, "tcgen05.mma mxf4nvf4": 1}
    assert counts == expected


def test_amd_assembly_tells_all() -> None:
    found = kernel_facts({"amdgcn": GCN})
    assert (found.registers, found.spills, found.shared_bytes) == (36, 8, 5120)
    assert found.stack_bytes == 12
    assert found.instructions == {
        "v_dot4_i32_i8": 2,
        "v_mfma_i32_16x16x32_i8": 1,
        "v_wmma_i32_16x16x16_iu8": 1,
    }


def test_what_no_file_says_is_none() -> None:
    assert kernel_facts({}) == KernelFacts()
    assert kernel_facts({"comp": b"simdgroup_multiply_accumulate("}) == KernelFacts()
    told = json.dumps({"shared_bytes": 64}).encode()
    assert kernel_facts({"amdgcn": GCN, "json": told}).shared_bytes == 64
    assert kernel_facts({"amdgcn": GCN, "json": told}).registers == 36


def test_metal_and_xe_texts() -> None:
    metal = b"simdgroup_multiply_accumulate(c, a, b, c); // simdgroup_multiply_accumulate\n"
    assert kernel_facts({"metal": metal}).instructions == {"simdgroup_multiply_accumulate": 1}
    tiles = b"    threadgroup char x[8 * 32];\n    threadgroup float acc[128];\n"
    assert kernel_facts({"metal": tiles}).shared_bytes == 256 + 512
    assert kernel_facts({"metal": tiles + b"    threadgroup odd y[2];\n"}).shared_bytes is None
    xe = b"     dpas.8x8 (16|M0) r10:d null:d r20:b r30.0:b\n// dpas.8x8\n(W)  dpas.8x4 x\n"
    xe += b"     dp4a (16|M0)   acc0.0<1>:d  0:w   r15.0<1;0>:d   r12.0<1>:d  {$12.dst}\n"
    assert kernel_facts({"xe.asm": xe}).instructions == {"dp4a": 1, "dpas": 2}


# --------------------------------------------------------------------------------------- SPIR-V


def spirv(*instructions: tuple[int, ...]) -> bytes:
    words = [MAGIC, 0x10600, 0, 100, 0]
    for opcode, *operands in instructions:
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


SHARED = (
    (21, 1, 8, 1),  # %1 = int8
    (22, 2, 32),  # %2 = f32
    (21, 3, 32, 0),  # %3 = u32
    (43, 3, 4, 512),  # %4 = 512
    (28, 5, 1, 4),  # %5 = int8[512]
    (28, 6, 2, 4),  # %6 = f32[512]
    (32, 7, 4, 5),  # %7 = pointer to %5 in Workgroup
    (32, 8, 4, 6),
    (32, 9, 12, 6),  # in StorageBuffer
    (59, 7, 10, 4),
    (59, 8, 11, 4),
    (59, 9, 12, 12),
)


def test_spirv_counts_opcodes_and_shared_memory() -> None:
    module = spirv(*SHARED, (4459, 2, 20, 1, 1, 1), (4459, 2, 21, 1, 1, 1), (4450, 3, 22, 1, 1))
    found = kernel_facts({"spv": module})
    assert found.instructions == {"OpCooperativeMatrixMulAddKHR": 2, "OpSDot": 1}
    assert found.shared_bytes == 512 + 4 * 512
    assert workgroup_bytes(spirv((32, 7, 4, 99), (59, 7, 10, 4))) is None
    assert workgroup_bytes(spirv()) == 0
    assert kernel_facts({"spv": spirv((17, 1))}).shared_bytes == 0
    assert kernel_facts({"spv": spirv((17, 6))}).shared_bytes is None, "OpenCL: not known"
    assert kernel_facts({"spv": spirv((17, 6), *SHARED)}).shared_bytes == 512 + 4 * 512


@pytest.mark.parametrize(
    "broken", [b"", b"12345", spirv()[:-1], b"\0" * 40, spirv((59, 1))[:-4], spirv() + b"\0" * 4]
)
def test_what_is_no_module_is_refused(broken: bytes) -> None:
    with pytest.raises(BuildError, match="is no SPIR-V"):
        opcode_counts(broken)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(noise: bytes) -> None:
    for reader, data in ((opcode_counts, spirv()[:20] + noise), (cubin_resources, noise)):
        try:
            reader(data)
        except BuildError:
            continue


# ---------------------------------------------------------------------------------------- cubin


def cubin(notes: bytes, shared: int) -> bytes:
    """An ELF64 file with just the sections that are read."""
    names = b"\0.nv.info\0.nv.shared.k\0.nv.shared.reserved.0\0.strtab\0"
    start = 64
    sections = [
        (0, 0, 0, 0),
        (names.index(b".nv.info"), 1, start, len(notes)),
        (names.index(b".nv.shared.k"), 8, 0, shared),
        (names.index(b".nv.shared.reserved"), 8, 0, 4096),
        (names.index(b".strtab"), 3, start + len(notes), len(names)),
    ]
    table = start + len(notes) + len(names)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 40, table)
    struct.pack_into("<HHH", head, 58, 64, len(sections), 4)
    rows = [struct.pack("<IIQQQQ", n, kind, 0, 0, at, size) for n, kind, at, size in sections]
    return bytes(head) + notes + names + b"".join(row.ljust(64, b"\0") for row in rows)


def note(attribute: int, value: int) -> bytes:
    return struct.pack("<BBHII", 4, attribute, 8, 9, value)


def test_a_cubin_tells_registers_stack_and_shared_memory() -> None:
    other = struct.pack("<BBH", 3, 0x2F, 7)  # the same attribute in a form without a value
    data = cubin(note(0x2F, 77) + other + note(0x11, 24) + note(0x2F, 40), 1024)
    assert cubin_resources(data) == Resources(77, 24, 1024)
    assert cubin_resources(cubin(b"", 0)) == Resources(None, None, 0)
    with pytest.raises(BuildError, match="not an ELF64 file"):
        cubin_resources(b"\x7fELF\x01" + data[5:])
    with pytest.raises(BuildError, match="is no cubin"):
        cubin_resources(data[:-40])


MATMUL = (Path(__file__).with_name("emulation") / "triton/matmul_s8.py").read_text()


def test_real_builds_tell_the_same_way() -> None:
    require("triton")
    signature = {"a": "*i8", "b": "*i8", "c": "*i32", "n": "i32", "k": "i32"}
    tile = {"BM": 16, "BN": 64, "BK": 64}
    kernel = TritonKernel(MATMUL, "matmul_s8", signature, tile, frozenset(signature))
    cuda = build_cuda(kernel, 80)
    found = kernel_facts({"ptx": cuda.text.encode(), "cubin": cuda.binary})
    assert found.registers is not None
    assert 16 <= found.registers <= 255
    assert found.spills == found.stack_bytes == 0
    assert found.instructions["mma.sync"] > 0
    rocm = build_rocm(kernel, "gfx942")
    found = kernel_facts({"amdgcn": rocm.text.encode(), "hsaco": rocm.binary})
    assert found.registers is not None
    assert 16 <= found.registers <= 512
    assert found.spills == 0
    assert found.instructions["v_mfma_i32_16x16x32_i8"] > 0


# -------------------------------------------------------------------------------------- traffic

M, R, C = Var("m"), Var("r"), Var("c")
X, Y = Buf("x", (M, 10), F16), Buf("y", (M, 10), F32)
T = Buf("t", (10,), F32, Mem.TILE)


def double(row: Var) -> tuple[Alloc, Map, Map]:
    """t = x[row] * 2, then y[row] = t: 10 halves in, 10 floats out, the tile free."""
    axes = (Axis(C, 10),)
    value = mul(Load(X, (row, C)), lit(2.0, F16))
    return (
        Alloc(T),
        Map(T, (C,), axes, value),
        Map(Y, (row, C), axes, Load(T, (C,))),
    )


def plan_of(*body: Step, bufs: tuple[Buf, ...] = (X, Y)) -> Plan:
    roles = {X: Role.INPUT, Y: Role.OUTPUT}
    return Plan("p", (M,), tuple(PlanBuf(b, roles.get(b, Role.STATE)) for b in bufs), body)


def test_each_run_of_a_statement_counts_once() -> None:
    shared = Kernel("k", (X, Y), (M,), (Share(R, M, double(R)),))
    assert requested_bytes(plan_of(shared), {M: 3}) == {"input": 60, "output": 120}
    twice = Loop(Var("layer"), 2, (shared,))
    assert requested_bytes(plan_of(twice, shared), {M: 3}) == {"input": 180, "output": 360}


def test_tiles_of_rows_count_by_tile() -> None:
    """Eleven rows are one tile of 8 and three of 1, each of which reads ten elements here."""
    body = (RowTiles(R, M, ((8, double(R)), (1, double(R)))),)
    found = requested_bytes(plan_of(Kernel("k", (X, Y), (M,), body)), {M: 11})
    assert found == {"input": 4 * 20, "output": 4 * 40}


def test_limits_that_read_a_rows_depth() -> None:
    """Row r of a chain has r ancestors: rows 0, 1 and 2 make 0 + 1 + 2 trips."""
    depth = Buf("depth", (M,), I32)
    trips = For(Var("d"), 0, Load(depth, (R,)), double(R))
    kernel = Kernel("k", (X, Y, depth), (M,), (Share(R, M, (trips,)),))
    found = requested_bytes(plan_of(kernel, bufs=(X, Y, depth)), {M: 3})
    assert found == {"input": 60, "output": 120, "state": 0}
    table = Buf("table", (M, 4), I32)
    bad = For(Var("d"), 0, Load(table, (R, lit(0))), double(R))
    with pytest.raises(VerifyError, match="a limit reads table"):
        requested_bytes(
            plan_of(Kernel("k", (X, Y, table), (M,), (Share(R, M, (bad,)),)), bufs=(X, Y, table)),
            {M: 1},
        )
