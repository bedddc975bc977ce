"""What lowering a graph to a plan keeps track of: buffers, sizes, weights and caches."""

from __future__ import annotations

from dataclasses import dataclass, field

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir import ops
from speccc.ir.expr import Expr, Load, Var, cast
from speccc.ir.graph import Value
from speccc.ir.packed import PackedMatrix
from speccc.ir.plan import PlanBuf, Role
from speccc.ir.tile import LANES, Buf
from speccc.ir.types import F16, F32, I8, I32, INDEX, U8, DType
from speccc.passes.weight_layout import LayerVar, WeightLayout

MAX_ROWS = 64
"""Most rows of one step; longer prefills take several."""

KV_TYPES: dict[str, DType] = {"f16": F16, "i8": I8, "f32": F32}


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines by position, [positions, pairs]; pairs past dim / 2 do not turn."""

    name: str
    theta: float
    dim: int
    divisor: float
    pairs: int
    factors: str | None


@dataclass(frozen=True, slots=True)
class KvShape:
    """Geometry of the KV cache: layers, KV heads, head size, element type and scale group."""

    layers: int
    heads: int
    size: int
    dtype: DType

    @property
    def group(self) -> int:
        """Elements of a head that are computed together and share an int8 scale."""
        return group_of(self.size)


def group_of(head_size: int) -> int:
    """32, or 16 for heads that are no multiple of it; UnsupportedError for others."""
    for group in (32, 16):
        if head_size % group == 0:
            return group
    raise UnsupportedError(f"heads of {head_size} elements: a multiple of 16 is needed")


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Sizes for the head of a step: first row, number of rows, and 1 if logits are wanted or 0.

    With `most`, how many of a row's largest logits are wanted, too: 0, or with logits up to `most`.
    """

    most: int = 0
    first: Var = field(default_factory=lambda: Var("head_first"))
    rows: Var = field(default_factory=lambda: Var("head_rows"))
    logits: Var = field(default_factory=lambda: Var("head_logits"))
    top: Var = field(default_factory=lambda: Var("head_top"))

    @property
    def sizes(self) -> tuple[Var, ...]:
        """All of them, in the order of the call."""
        return (self.first, self.rows, self.logits, *([self.top] if self.most else []))


@dataclass
class Context:
    """State of one lowering. `values` maps graph values to buffers [m, columns padded to 16]."""

    kv: KvShape
    m: Var = field(default_factory=lambda: Var("m"))
    length: Var = field(default_factory=lambda: Var("length"))
    slots: Var = field(default_factory=lambda: Var("slots"))
    head: HeadRows = field(default_factory=HeadRows)
    weights: WeightLayout = field(default_factory=WeightLayout)
    bufs: list[PlanBuf] = field(default_factory=list)
    values: dict[Value, Buf] = field(default_factory=dict)
    caches: dict[Value, Expr] = field(default_factory=dict)
    tables: dict[RopeTable, tuple[Buf, Buf]] = field(default_factory=dict)
    aliases: dict[Value, Buf] = field(default_factory=dict)
    constants: dict[Value, tuple[tuple[str, ...], LayerVar | None]] = field(default_factory=dict)
    layer: LayerVar | None = None
    picks: Buf | None = None
    counter: int = 0
    activations: str = "int8"
    attention: str = "f32"
    split: bool = False

    def __post_init__(self) -> None:
        kv, scale = self.kv, self.kv.dtype == I8
        self.tokens = self.buffer("tokens", (self.m,), I32, Role.INPUT)
        self.positions = self.buffer("positions", (self.m,), I32, Role.INPUT)
        self.depth = self.buffer("depth", (self.m,), I32, Role.INPUT)
        self.path = self.buffer("path", (self.m, MAX_ROWS), I32, Role.INPUT)
        self.blob = self.buffer("weights", (Var("weight_bytes"),), U8, Role.WEIGHTS)
        self.vectors = self.buffer("vectors", (Var("vector_elements"),), F32, Role.WEIGHTS)
        tiles, panels = Var("tiles"), kv.size // LANES
        self.tiles = tiles
        head = (kv.layers, kv.heads)
        self.k = self.buffer("k_cache", (*head, tiles, kv.size, LANES), kv.dtype, Role.STATE)
        self.v = self.buffer("v_cache", (*head, panels, self.slots, LANES), kv.dtype, Role.STATE)
        groups = kv.size // kv.group
        shape = (*head, groups, self.slots)
        self.k_scale = self.buffer("k_scale", shape, F32, Role.STATE) if scale else None
        self.v_scale = self.buffer("v_scale", shape, F32, Role.STATE) if scale else None

    def buffer(self, name: str, shape: tuple[Expr | int, ...], dtype: DType, role: Role) -> Buf:
        """A new buffer of the plan."""
        buf = Buf(name, shape, dtype)
        self.bufs.append(PlanBuf(buf, role))
        return buf

    def weight(
        self,
        names: tuple[str, ...],
        packed: PackedMatrix,
        group: int | None,
        layer: LayerVar | None,
    ) -> tuple[Buf, Expr]:
        """The buffer that holds names[layer], and the byte of it where the matrix begins."""
        offset = self.weights.matrix(names, packed, group, layer)
        if not self.weights.windowed:
            return self.blob, offset
        found = next((b.buf for b in self.bufs if b.window == offset), None)
        if found is None:
            count = sum(b.window is not None for b in self.bufs)
            found = Buf(f"{self.blob.name}_{count}", (packed.nbytes,), U8)
            self.bufs.append(PlanBuf(found, Role.WEIGHTS, offset))
        return found, ex.lit(0)

    def activation(self, value: Value, name: str, role: Role = Role.ACTIVATION) -> Buf:
        """A buffer for a graph value f32[m, ..], trailing axes flattened and padded to 16."""
        if value in self.aliases:
            self.values[value] = self.aliases[value]
            return self.aliases[value]
        columns = -(-columns_of(value) // LANES) * LANES
        self.counter += 1
        buf = self.buffer(f"{name}_{self.counter}", (self.m, columns), F32, role)
        self.values[value] = buf
        return buf

    def workspace(self, name: str, shape: tuple[Expr | int, ...]) -> Buf:
        """The one buffer of that name and shape that all layers share in turn."""
        for b in self.bufs:
            if b.role is Role.WORKSPACE and b.buf.name == name:
                return b.buf
        return self.buffer(name, shape, F32, Role.WORKSPACE)

    def scratch_activation(self, name: str, shape: tuple[Expr | int, ...]) -> Buf:
        """A buffer shared by the phases of one step that is no graph value."""
        self.counter += 1
        return self.buffer(f"{name}_{self.counter}", shape, F32, Role.ACTIVATION)

    @property
    def scalars(self) -> tuple[Var, ...]:
        """Every scalar a kernel may read here."""
        base = (self.m, self.length, self.slots, self.tiles)
        sized = (self.blob.shape[0], self.vectors.shape[0])
        loop = () if self.layer is None else (self.layer.var,)
        return (*base, *(s for s in sized if isinstance(s, Var)), *loop)

    def names(self, value: Value) -> tuple[tuple[str, ...], LayerVar | None]:
        """The weight (or, in a loop, the weights of all trips) behind a value."""
        if value in self.constants:
            return self.constants[value]
        return (weight_name(value),), None


def weight_name(value: Value) -> str:
    """The name of a weight, also through a cast to f32."""
    op = value.node.op
    if isinstance(op, ops.Weight):
        return op.name
    if isinstance(op, ops.Cast):
        return weight_name(value.node.inputs[0])
    raise UnsupportedError(f"{op.mnemonic} where a weight is needed")


def columns_of(value: Value) -> int:
    """The product of the axes after the first."""
    count = 1
    for d in value.type.shape[1:]:
        if not isinstance(d, int):
            raise UnsupportedError(f"a value of type {value.type} has more than one symbolic size")
        count *= d
    return count


def load_index(buf: Buf, *index: Expr) -> Expr:
    """An i32 element as an index."""
    return cast(Load(buf, index), INDEX)
