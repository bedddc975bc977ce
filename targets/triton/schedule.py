"""How Triton kernels are cut into tiles: free to choose, none of it changes a bit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fp4:
    """The least tile of a matrix instruction for NVFP4, in rows of weights and tokens.

    `inline`: its sums are in memory that only a kernel can hold, no function that one calls. A step
    that uses it has `warps` and tiles of `units` panels: with fewer warps or wider tiles it spills.
    """

    lanes: int
    tokens: int
    inline: bool = False
    warps: int = 8
    units: int = 2


@dataclass(frozen=True, slots=True)
class Fp8:
    """Where there is an instruction for e4m3: most panels of its tile, and least tokens.

    `halves`: it makes f16 of them, which are what the engine multiplies.
    """

    units: int = 4
    tokens: int = 1
    halves: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile is `tokens` columns and up to `units` panels of 16 rows, if `fill` workers stay busy.

    Trips of long loops are written out `unroll` at a time, so that their loads overlap. `warps` and
    `stages` are the compiler's, and so are `registers` of a thread on CUDA, where all may be used:
    a spill in a loop over weights costs more than fewer resident workers. A sum of floats that the
    matrix engine makes takes up to `float_units` panels; one of e4m3 is as `fp8` says.

    `amd` is what LLVM for AMD needs. Heights of tiles are told apart outside loops over units:
    inside, it computes ahead of the loop what each height needs, for all of them at once. A higher
    tile of a sum by the engine has `tokens` for each warp: of a lower one all warps make all.
    Products load no row under a mask, which would be a branch for each load.
    """

    tokens: int = 8
    units: int = 4
    fill: int = 64
    unroll: int = 2
    warps: int = 4
    stages: int = 2
    registers: int | None = 255
    fp4: Fp4 | None = None
    float_units: int = 4
    fp8: Fp8 | None = None
    amd: bool = False

    def __str__(self) -> str:
        return (
            f"tiles to {16 * self.units}x{self.tokens}, unroll {self.unroll}, "
            f"{self.warps} warps, {self.stages} stages{', fp4' if self.fp4 else ''}"
        )
