"""The head: picks equal the argmax of the logits; what nobody asks for is not computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cpu_rig import HERE, Built, Spec, build, compiled, golden, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Tiny

from speccc.errors import InputError, SpecccError, UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.plan import Plan, Role, check_order
from speccc.ir.tile import LANES, Alloc, Axis, Buf, Map, Mem, Share, Stmt
from speccc.ir.tile_verify import verify_plan
from speccc.ir.types import F16, F32
from speccc.passes.lower_context import Context, HeadRows, KvShape
from speccc.passes.lower_head import RUNS, lower_head, lower_pick
from speccc.passes.lower_region import kernel_of
from speccc.passes.lower_top import lower_top
from speccc.runtime.session import CpuSession

Floats = npt.NDArray[np.float32]
ROWS = 12
VOCABS = (1, 5, 16, 37, LANES * RUNS + 3)  # the last has runs of two panels


@dataclass(frozen=True)
class Head:
    """The head's two kernels over logits that lie ready, so that a test can say what they are."""

    plan: Plan
    given: Buf
    logits: Buf
    picks: Buf
    vocab: int

    def arrays(self, values: Floats) -> dict[Buf, npt.NDArray[Any]]:
        """`values` [m, vocab] as the given logits; past the vocabulary all is larger."""
        m = len(values)
        padded = np.full((m, -(-self.vocab // LANES) * LANES), np.float32(3e38))
        padded[:, : self.vocab] = values
        return {
            self.given: padded,
            self.logits: np.full_like(padded, -7.0),
            self.picks: np.full(m, -77, np.int32),
        }

    def sizes(self, m: int, first: int, rows: int, logits: int) -> dict[Var, int]:
        known = {"m": m, "head_first": first, "head_rows": rows, "head_logits": logits}
        return {v: known.get(v.name, 64) for v in self.plan.sizes}


def head(vocab: int, most: int = 0) -> Head:
    """The same one for the same numbers."""
    return _head(vocab, most)


@functools.cache
def _head(vocab: int, most: int) -> Head:
    ctx = Context(KvShape(1, 1, 16, F16), head=HeadRows(most))
    panels = -(-vocab // LANES)
    given = ctx.buffer("given", (ctx.m, panels * LANES), F32, Role.STATE)
    logits = ctx.buffer("logits", (ctx.m, panels * LANES), F32, Role.OUTPUT)

    def tile(width: int, row: Expr, panel: Expr) -> tuple[list[Stmt], Callable[..., Expr]]:
        acc, i, j = Buf("acc", (width, LANES), F32, Mem.TILE), Var("i"), Var("j")
        at = (ex.add(ex.add(ctx.head.first, row), i), ex.add(ex.mul(panel, LANES), j))
        fill = Map(acc, (i, j), (Axis(i, width), Axis(j, LANES)), Load(given, at))
        return [Alloc(acc), fill], lambda i, j: Load(acc, (i, j))

    body, best = lower_head(ctx, vocab, logits, tile)
    first = kernel_of(ctx, "head", tuple(body), head=True)
    row = Var("row")
    picks, last = lower_pick(ctx, best, row)
    if most:
        last += lower_top(ctx, best, logits, vocab, row)
    shared = (Share(row, ctx.head.rows, last),)
    kernels = (first, kernel_of(ctx, "pick", shared, head=True))
    used = {b for k in kernels for b in k.bufs}
    bufs = tuple(b for b in ctx.bufs if b.buf in used)
    plan = Plan("step", (*ctx.scalars, *ctx.head.sizes), bufs, kernels)
    check_order(plan)
    verify_plan(plan)
    return Head(plan, given, logits, picks, vocab)


@functools.cache
def machine_code(vocab: int, isa: str, most: int = 0) -> Built:
    h = head(vocab, most)
    here = {i.name: i for i in HERE}
    return build(h.plan, {v: ROWS for v in h.plan.sizes if v.name == "m"}, here[isa])


def expected_picks(values: Floats) -> npt.NDArray[np.int32]:
    """np.argmax where that is finite; it stops at the first NaN, which we rank as +inf."""
    ranked = np.where(np.isnan(values), np.float32(np.inf), values)
    at = ranked.argmax(axis=1)
    top = ranked[np.arange(len(ranked)), at]
    return np.where(np.isfinite(top), at, -1).astype(np.int32)


def check(h: Head, values: Floats, first: int, rows: int, logits: int, isas: list[str]) -> None:
    """Golden machine and compiled code agree with NumPy, and touch nothing else."""
    arrays, sizes = h.arrays(values), h.sizes(len(values), first, rows, logits)
    for b in h.plan.by_role(Role.ACTIVATION):
        arrays[b] = np.full((len(values), int(b.shape[1])), np.nan, np.float32)  # type: ignore[arg-type]
    results = [golden(h.plan, arrays, sizes, workers=2)]
    external = {b: a for b, a in arrays.items() if b not in h.plan.by_role(Role.ACTIVATION)}
    for isa in isas:
        results += [machine_code(h.vocab, isa).run(external, sizes, workers) for workers in (1, 3)]
    part = values[first : first + rows]
    for got in results:
        assert got[h.picks].tolist() == [*expected_picks(part), *[-77] * (len(values) - rows)]
        written = rows * logits
        assert same_bits(got[h.logits][:written, : h.vocab], part[:written])
        assert (got[h.logits][written:] == -7.0).all()


@st.composite
def planted(draw: st.DrawFn, vocab: int) -> Floats:
    """Rows with ties, zeros of both signs, infinities and NaN at places of their own."""
    m = draw(st.integers(1, ROWS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal((m, vocab)).astype(np.float32)
    if draw(st.booleans()):
        values = np.round(values)  # many ties, and -0.0 beside 0.0
    specials = [9.0, -0.0, np.inf, -np.inf, np.nan, -3e38]
    for row in range(m):
        if draw(st.integers(0, 3)) == 0:
            values[row] = draw(st.sampled_from([0.0, -np.inf, -3e38, np.nan]))
        for _ in range(draw(st.integers(0, 3))):
            where = rng.integers(0, vocab, 2)
            values[row, where] = draw(st.sampled_from(specials))
    return values


@pytest.mark.parametrize("vocab", VOCABS)
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_picks_are_argmax(vocab: int, data: st.DataObject) -> None:
    values = data.draw(planted(vocab))
    first = data.draw(st.integers(0, len(values)))
    rows = data.draw(st.integers(0, len(values) - first))
    isas = [i.name for i in HERE] if vocab < 100 else [HERE[0].name]
    check(head(vocab), values, first, rows, data.draw(st.integers(0, 1)), isas)


@pytest.mark.parametrize("vocab", [16, 37, 600])
def test_the_lowest_of_equals_wins_wherever_they_lie(vocab: int) -> None:
    """In one lane, in two lanes of a panel, in two runs: every pair of places near an edge."""
    edges = sorted(
        {0, 1, 15, 16, 17, 31, 32, 47, 48, 49, vocab // 2, vocab - 1} & set(range(vocab))
    )
    pairs = [(a, b) for a in edges for b in edges if a <= b]
    for at in range(0, len(pairs), ROWS):
        values = np.zeros((len(pairs[at : at + ROWS]), vocab), np.float32)
        for row, pair in enumerate(pairs[at : at + ROWS]):
            values[row, list(pair)] = 2.5
        check(head(vocab), values, 0, len(values), 0, [HERE[0].name])
        assert expected_picks(values).tolist() == [a for a, _ in pairs[at : at + ROWS]]


def test_a_vocabulary_past_exact_floats_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="at most 16777215"):
        head(1 << 24)


MODELS = {
    "f32": Spec(Tiny(seed=21, vocab=261), "f32"),
    "f16, untied, kv i8": Spec(Tiny(seed=22, vocab=270, tied=False, layers=1), "f16", "i8"),
    "q4_0": Spec(Tiny(seed=23, vocab=319), "q4_0"),
    "q4_1": Spec(Tiny(seed=24, vocab=272), "q4_1"),
    "q8_0": Spec(Tiny(seed=25, vocab=263, layers=1), "q8_0"),
}


@pytest.fixture(params=MODELS)
def spec(request: pytest.FixtureRequest) -> Spec:
    return MODELS[request.param]


def tokens(spec: Spec, count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, spec.tiny.vocab, count)]


def session(spec: Spec, **options: int) -> CpuSession:
    return compiled(spec).session(context=256, **options)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_picks_of_chains_and_prompts(spec: Spec, threads: int) -> None:
    """Any chunks of 150 tokens, more than a step holds: one call, and 1 to 64 at a time."""
    text = tokens(spec, 150)
    logits = session(spec).forward(text)
    expected = logits.argmax(axis=1)
    assert len(set(expected.tolist())) > 3
    s = session(spec, threads=threads)
    for chunk in (150, 1, 5, 64):
        s.truncate(0)
        got = [s.pick(text[at : at + chunk]) for at in range(0, 150, chunk)]
        assert np.concatenate(got).tolist() == expected.tolist(), chunk
    assert s.pick(text[:7]).dtype == np.int32


def test_picks_of_trees(spec: Spec) -> None:
    """The picks of every node; then `keep` and what follows as after a `forward`."""
    rng = np.random.default_rng(3)
    one, two = session(spec), session(spec)
    for s in (one, two):
        s.forward(tokens(spec, 21))
    nodes = tokens(spec, 17, seed=4)
    parents = [int(rng.integers(-1, row)) if row else -1 for row in range(17)]
    rows = one.forward(nodes, parents=parents)
    assert two.pick(nodes, parents=parents).tolist() == rows.argmax(axis=1).tolist()
    path = [0]
    path += [r for r in range(17) if parents[r] == 0][:1]
    for s in (one, two):
        s.keep(path)
    after = tokens(spec, 5, seed=5)
    assert same_bits(one.forward(after), two.forward(after))


def test_logits_of_the_last_rows_only(spec: Spec) -> None:
    text = tokens(spec, 140)
    expected = session(spec).forward(text)
    s = session(spec)
    for last in (0, 1, 12, 13, 76, 77, 140):  # 140 = 64 + 64 + 12: ends of steps, and beside them
        s.truncate(0)
        assert same_bits(s.forward(text, last=last), expected[140 - last :]), last
        assert s.length == 140
    s.truncate(20)
    nodes, parents = text[20:25], [-1, 0, 0, -1, 3]
    whole = s.forward(nodes, parents=parents)
    s.truncate(20)
    assert same_bits(s.forward(nodes, parents=parents, last=2), whole[3:])


def test_no_head_in_prefill_and_no_logits_in_picks() -> None:
    """What is not asked for is not written: the marks put there before are still there."""
    spec = MODELS["q4_1"]
    s = session(spec)
    logits, picks = s._arrays[s.spec.logits], s._arrays[s.spec.picks]
    logits[:], picks[:] = 5.0, 99
    s.prefill(tokens(spec, 100))
    assert (logits == 5.0).all()
    assert (picks == 99).all()
    s.pick(tokens(spec, 70))
    assert (logits == 5.0).all()
    assert (picks[:64] != 99).any()
    s.forward(tokens(spec, 8), last=3)
    assert (logits[:3] != 5.0).any(axis=1).all()
    assert (logits[3:] == 5.0).all()


def test_a_broken_model_says_so() -> None:
    """Weights that are not numbers: no pick, and generation ends with an error."""
    model = compiled(MODELS["f32"])
    s = model.session(context=64)
    data = model._entries.data
    vectors = np.full_like(s._arrays["vectors"], np.nan)
    bad = CpuSession(s.spec, data["step.so"], data["weights"], vectors, context=64, threads=1)
    assert bad.pick([1, 2, 3]).tolist() == [-1, -1, -1]
    with pytest.raises(SpecccError, match="not finite"):
        model.generate([1, 2, 3], session=bad, max_tokens=4)


BAD_TYPES: dict[str, Callable[[CpuSession], object]] = {
    "text": lambda s: s.forward("hello"),  # type: ignore[arg-type]
    "a list of text": lambda s: s.pick(["1", "2"]),  # type: ignore[list-item]
    "none": lambda s: s.prefill(None),  # type: ignore[arg-type]
    "a list of none": lambda s: s.forward([None]),  # type: ignore[list-item]
    "floats": lambda s: s.forward([1.0, 2.0]),  # type: ignore[list-item]
    "nan": lambda s: s.forward([float("nan")]),  # type: ignore[list-item]
    "a number": lambda s: s.forward(3),  # type: ignore[arg-type]
    "rows of rows": lambda s: s.forward([[1, 2], [3, 4]]),  # type: ignore[list-item]
    "ragged rows": lambda s: s.forward([[1, 2], [3]]),  # type: ignore[list-item]
    "a set": lambda s: s.forward({1, 2}),  # type: ignore[arg-type]
    "huge": lambda s: s.forward([1 << 70]),
    "just too large": lambda s: s.pick([1 << 63]),
    "hugely negative": lambda s: s.prefill([-(1 << 70)]),
    "bytes": lambda s: s.forward(b"ab"),  # type: ignore[arg-type]
    "complex": lambda s: s.forward([1j]),  # type: ignore[list-item]
    "text for parents": lambda s: s.forward([1, 2], parents="ab"),  # type: ignore[arg-type]
    "floats for parents": lambda s: s.pick([1, 2], parents=[-1.0, 0.0]),  # type: ignore[list-item]
    "huge parents": lambda s: s.pick([1, 2], parents=[-1, 1 << 65]),
    "text for last": lambda s: s.forward([1, 2], last="1"),  # type: ignore[arg-type]
    "too many last": lambda s: s.forward([1, 2], last=3),
    "negative last": lambda s: s.forward([1, 2], last=-1),
    "a float length": lambda s: s.truncate(1.0),  # type: ignore[arg-type]
    "no length": lambda s: s.truncate(None),  # type: ignore[arg-type]
    "text for rows": lambda s: s.keep("0"),  # type: ignore[arg-type]
    "none for rows": lambda s: s.keep(None),  # type: ignore[arg-type]
    "floats for rows": lambda s: s.keep([0.0]),  # type: ignore[list-item]
    "huge rows": lambda s: s.keep([1 << 80]),
}


@pytest.mark.parametrize("name", BAD_TYPES)
def test_wrong_types_are_input_errors(name: str) -> None:
    spec = MODELS["q4_1"]
    s = session(spec)
    s.forward([1, 2, 3])
    with pytest.raises(InputError) as caught:
        BAD_TYPES[name](s)
    assert "\n" not in str(caught.value)
    assert s.length == 3
    assert same_bits(s.forward([4]), session(spec).forward([1, 2, 3, 4])[3:])


def test_integers_of_other_types_are_tokens() -> None:
    spec = MODELS["q4_1"]
    expected = session(spec).pick([1, 2, 3]).tolist()
    for kind in (np.int8, np.uint8, np.uint32, np.uint64, np.int64):
        assert session(spec).pick(np.array([1, 2, 3], kind)).tolist() == expected  # type: ignore[arg-type]
    assert session(spec).pick((np.int64(1), 2, np.uint8(3))).tolist() == expected
