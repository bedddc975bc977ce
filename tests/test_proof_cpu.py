"""The proof program as machine code: golden bits for every format on every instruction set here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cpu_rig import HERE, build, golden, same_bits, single
from proof_program import Proof, inputs, proof_program

from speccc.ir.schedule import Schedule
from speccc.ir.tile import Buf
from speccc.ir.tile_verify import verify_kernel
from speccc.targets.cpu import objects, pipeline
from speccc.targets.cpu.isa import ISAS, Isa, by_name, detect
from speccc.targets.cpu.kernel_function import kernel_function

WIDTHS = {
    "q4_0": (3, 2, 1),
    "q4_1": (8, 7, 6, 5, 4, 3, 2, 1),
    "q8_0": (4, 2, 1),
    "mxfp4": (4, 2, 1),
    "nvfp4": (5, 3, 2, 1),
}


def reference(p: Proof, arrays: Mapping[Buf, npt.NDArray[np.generic]]) -> npt.NDArray[np.float64]:
    """The program's meaning in f64: rows quantised, weights decoded, plain matrix products."""
    x = np.asarray(arrays[p.x], np.float64)
    x = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * np.asarray(arrays[p.norm])
    blocks = x.reshape(len(x), -1, 32)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / 127
    x = (np.rint(blocks / scale) * scale).reshape(x.shape)
    halves = np.asarray(arrays[p.blob]).reshape(2, p.w.panels, -1)
    gate, up = (x @ decoded(p, half).T for half in halves)
    silu: npt.NDArray[np.float64] = gate / (1 + np.exp(-gate)) * up
    return silu


def decoded(p: Proof, panels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Packed panels as a matrix [rows, k]."""
    out = []
    for panel in panels:
        codes, scale, minimum = p.w.unpack_panel(panel)
        wide = scale.repeat(p.w.format.group, axis=2)
        value = p.w.format.integers(codes).astype(np.float64) * wide
        out.append(value if minimum is None else value + minimum[..., None])
    return np.concatenate(out).reshape(-1, p.w.k)[: p.w.rows]


@pytest.mark.parametrize("fmt", WIDTHS)
def test_equals_golden(fmt: str) -> None:
    """Every height of row tile (m = 1..8), two tiles and a rest (m = 17), one worker and three.

    The golden machine itself is within 1e-4 of f64: sums of 96 or 128 terms of f32 (2**-24 each),
    and a code of an activation that rounds the other way moves a sum by 1/127 of one term.
    """
    p = proof_program(96, 48, fmt, WIDTHS[fmt])
    verify_kernel(p.kernel)
    plan = single([p.kernel])
    built = {isa.name: build(plan, {p.m: 17}, isa) for isa in HERE}
    for m in (1, 2, 3, 4, 5, 6, 7, 8, 17):
        arrays = inputs(p, m, seed=m)
        expected = golden(plan, arrays, {p.m: m}, workers=2)[p.y]
        exact = reference(p, arrays)
        assert np.abs(expected - exact).max() < 2e-3 * np.abs(exact).max()
        assert np.median(np.abs(expected - exact)) < 1e-6 * np.abs(exact).max()
        for name, code in built.items():
            for workers in (1, 3):
                got = code.run(arrays, {p.m: m}, workers)[p.y]
                assert same_bits(got, expected), (name, m, workers)


def test_rows_do_not_meet() -> None:
    """A row's result is the same bits alone and among others."""
    p = proof_program(64, 32, widths=(8, 4, 2, 1))
    code = build(single([p.kernel]), {p.m: 17})
    arrays = inputs(p, 17, seed=1)
    together = code.run(arrays, {p.m: 17})[p.y]
    for row in range(17):
        one = {**arrays, p.x: arrays[p.x][row : row + 1], p.y: arrays[p.y][:1]}
        assert same_bits(code.run(one, {p.m: 1})[p.y], together[row : row + 1])


def test_extreme_rows() -> None:
    """Rows of zeros and of one huge or tiny element: no NaN, and equal to golden."""
    p = proof_program(64, 16, widths=(2, 1))
    plan = single([p.kernel])
    arrays = inputs(p, 5)
    x = np.zeros((5, 64), np.float32)
    x[1, 3], x[2, 40], x[3], x[4, ::2] = 1e15, -1e-30, 1e-20, -0.0
    arrays[p.x] = x
    expected = golden(plan, arrays, {p.m: 5})[p.y]
    assert np.isfinite(expected).all()
    for isa in HERE:
        got = build(plan, {p.m: 5}, isa).run(arrays, {p.m: 5})[p.y]
        assert np.array_equal(got, expected), isa.name


def assembly(isa: Isa, fmt: str) -> str:
    """The program's machine code for an instruction set, as text, without an assembler."""
    import tvm
    from tvm import tirx

    p = proof_program(64, 16, fmt, widths=(2, 1))
    kernel = kernel_function(isa, p.kernel, {p.m: 4}, Schedule())
    module = tirx.build(
        tvm.IRModule({kernel.symbol: kernel.func}),
        target=objects.tvm_target(isa),
        pipeline=pipeline.register(packed=False),
    )
    text: str = module.inspect_source("asm")
    return text


DOTS = {
    "avx512vnni": r"^\s*vpdpbusd\s.*zmm",
    "avxvnni": r"^\s*\{vex\}\s*vpdpbusd\s.*ymm",
    "avx2": r"^\s*vpmaddubsw\s",
    "dotprod": r"^\s*sdot\s",
}


@pytest.mark.parametrize("fmt", ["q4_1", "q8_0"])
@pytest.mark.parametrize("isa", DOTS)
def test_the_rule_uses_its_instruction(isa: str, fmt: str) -> None:
    """Built for machines this one need not be; eight dots a block and row at the least."""
    text = assembly(ISAS[isa], fmt)
    found = {name: len(re.findall(dot, text, re.MULTILINE)) for name, dot in DOTS.items()}
    assert found.pop(isa) >= 8
    assert not any(found.values())


def test_aarch64_object() -> None:
    """An ELF object for AArch64 (machine 183) that holds `sdot v.4s, v.16b, v.16b` encodings."""
    p = proof_program(64, 16, widths=(2, 1))
    kernel = kernel_function(by_name("dotprod"), p.kernel, {p.m: 4}, Schedule())
    raw = objects.build_object(by_name("dotprod"), kernel.to_build())
    assert raw[:4] == b"\x7fELF"
    assert int.from_bytes(raw[18:20], "little") == 183
    words = np.frombuffer(raw[: len(raw) // 4 * 4], "<u4")
    # Arm ARM C7.2: SDOT (vector) is 0 Q 0 01110 10 0 Rm 100101 Rn Rd, here with Q = 1.
    assert ((words & 0xFFE0FC00) == 0x4E809400).sum() >= 8


def test_detection_takes_the_best() -> None:
    assert detect() is HERE[0]
    assert HERE[-1].name == "portable"
