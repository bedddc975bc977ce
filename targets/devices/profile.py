"""What the code generators know of a device: an architecture's facts and a product's figures.

Every figure carries its source, and says so where that is not the maker's word. What no source
says is None: it is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

from speccc.ir.fragment import MmaShape
from speccc.ir.types import DTYPES, DType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value and where it is written: an address, or the query that answers with it.

    `estimated`: neither the device's maker nor a driver for it says so in those words; the source
    is an article, or a document about a sibling from which the value follows.
    """

    value: T
    source: str
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix instruction acc[m, n] += a[m, k] @ b[k, n].

    Types are named as in `speccc.ir.types`, with e4m3, e5m2, e2m1, i4 and tf32 beside. `least_m`:
    any number of rows from there to `m` is an instruction of its own. `scale` is elements of k
    that share a scale, for the block-scaled ones.
    """

    a: str
    b: str
    acc: str
    m: int
    n: int
    k: int
    least_m: int | None = None
    scale: int | None = None

    def mma(self) -> MmaShape | None:
        """As the fragment level names it, or None when it has no such element type."""
        if not {self.a, self.b, self.acc} <= set(DTYPES) or self.scale is not None:
            return None
        a, b, acc = (DTYPES[n] for n in (self.a, self.b, self.acc))
        return MmaShape(a, b, acc, self.m, self.n, self.k)

    def __str__(self) -> str:
        rows = str(self.m) if self.least_m is None else f"{self.least_m}..{self.m}"
        scaled = "" if self.scale is None else f" scaled by {self.scale}"
        return f"{self.a}*{self.b}->{self.acc} {rows}x{self.n}x{self.k}{scaled}"


@dataclass(frozen=True, slots=True)
class Arch:
    """What all devices of one architecture share, as one programming interface shows it.

    `subgroup` is invocations of a warp, wave or SIMD group; `shared_bytes` the most shared memory
    of one workgroup; `registers` the most 32-bit registers of one invocation; `matrix` its matrix
    instructions; `dot4` whether four 8-bit products are added by one instruction.
    """

    backend: str
    name: str
    subgroup: Fact[int] | None = None
    shared_bytes: Fact[int] | None = None
    registers: Fact[int] | None = None
    matrix: Fact[tuple[Matrix, ...]] | None = None
    dot4: Fact[bool] | None = None

    def __str__(self) -> str:
        return f"{self.backend}:{self.name}"


@dataclass(frozen=True, slots=True)
class Device:
    """One product: `archs` are the architectures it is, one by backend, as "cuda:sm_89".

    `bandwidth` is GB/s of device memory, `memory` its bytes; `units` are SMs, compute units or
    cores; `cache` is bytes of the last-level cache; `rates` are dense TFLOPS or TOPS, named by
    operand type: of matrix instructions, of packed dots where there are none.
    """

    name: str
    title: str
    archs: tuple[str, ...]
    bandwidth: Fact[float] | None = None
    memory: Fact[int] | None = None
    units: Fact[int] | None = None
    cache: Fact[int] | None = None
    rates: Mapping[str, Fact[float]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Profile:
    """What a target compiles for: an architecture, and a product of it when one is named."""

    arch: Arch
    device: Device | None = None

    @property
    def backend(self) -> str:
        """cuda, rocm, vulkan, sycl or metal."""
        return self.arch.backend

    @property
    def name(self) -> str:
        """The target's name: "cuda:rtx4090", or "cuda:sm_89" when no product is named."""
        return f"{self.backend}:{self.device.name if self.device else self.arch.name}"

    def matrix(self, a: DType, b: DType, acc: DType) -> tuple[MmaShape, ...]:
        """The matrix instructions of these element types, in the table's order."""
        found = self.arch.matrix.value if self.arch.matrix else ()
        shapes = (m.mma() for m in found)
        return tuple(s for s in shapes if s and (s.a, s.b, s.acc) == (a, b, acc))


def rates(
    figures: Mapping[str, float], source: str, *, estimated: bool = False
) -> Mapping[str, Fact[float]]:
    """Rates that one document gives."""
    facts = {name: Fact(figure, source, estimated) for name, figure in figures.items()}
    return MappingProxyType(facts)
