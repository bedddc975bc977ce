"""The compiled model computes the model: against transformers in float32, and our own machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cpu_rig import Spec, compiled, model_file, same_bits
from graph_models import TinySession, config_of, stored
from models import Tiny

from speccc.driver import CompileOptions, _Times, final_graph, frequencies
from speccc.ir.build_llama import build_llama, weight_types
from speccc.ir.expr import Var
from speccc.ir.frontends import open_model
from speccc.ir.plan import run_plan, size_of
from speccc.ir.tile import Buf
from speccc.ir.types import F16
from speccc.pack import pack_weights
from speccc.passes.lower_graph import LowerGraph
from speccc.runtime.rows import chain, tree
from speccc.runtime.session import LANES, sizes_of

Floats = npt.NDArray[np.float32]

CONFIGS = {
    "gqa": Spec(Tiny(seed=21), kind="llama", kv="f32"),
    "untied, three layers": Spec(Tiny(seed=22, tied=False, layers=3), kind="llama", kv="f32"),
    "linear rope": Spec(Tiny(seed=23), kind="llama", rope="linear", kv="f32"),
    "llama3 rope": Spec(Tiny(seed=24, head_dim=32), kind="llama", rope="llama3", kv="f32"),
    "mistral": Spec(Tiny(seed=25, kv_heads=1, head_dim=48), kind="mistral", kv="f32"),
}


def tokens_of(t: Tiny, count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(t.seed).integers(0, t.vocab, count)]


@pytest.mark.parametrize("which", CONFIGS)
def test_logits_equal_transformers(which: str, tmp_path: Path) -> None:
    """Within 1e-4 of the largest logit: f32 rounding over a few hundred terms is below 1e-5."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = CONFIGS[which]
    tokens = tokens_of(spec.tiny, 80)
    ours = compiled(spec).session().forward(tokens)
    folder = model_file(spec, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize(("kv", "error"), [("f16", 2**-12 / 3**0.5), ("i8", 2 / 127 / 12**0.5)])
def test_a_small_cache_costs_little(kv: str, error: float) -> None:
    """`error` is the relative RMS error of a cached element.

    f16 rounds within 2**-12; int8 within half of 1/127 of a group's largest element, twice its RMS.
    Scores here have an RMS below 4, so a layer turns an error of its keys into one of 4 times that,
    and of its values into itself: 5 a layer, 10 in two.
    """
    spec = CONFIGS["gqa"]
    tokens = tokens_of(spec.tiny, 64)
    exact = compiled(spec).session().forward(tokens)
    small = compiled(replace(spec, kv=kv)).session().forward(tokens)
    gap = float(np.sqrt(np.mean((small - exact) ** 2) / np.mean(exact**2)))
    assert error / 10 < gap < 10 * error


class PlanSession:
    """A session on the NumPy plan machine, made like the driver makes an artifact."""

    def __init__(self, spec: Spec, folder: Path, slots: int = 64, *, split: bool = False) -> None:
        source = open_model(model_file(spec, folder))
        options = CompileOptions(kv=spec.kv)
        classes = {"activations": spec.activations, "attention": spec.attention}
        lowering = LowerGraph(spec.kv, split=split, **classes)
        self.lowered = lowering.run(final_graph(source, options, _Times()))
        blob, vectors = pack_weights(self.lowered.weights, source.weights)
        self.length = 0
        self.sizes: dict[Var, int] = {}
        known = {**sizes_of(slots // LANES), "m": 0, "length": 0}
        known |= {"weight_bytes": blob.size, "vector_elements": vectors.size}
        known |= {"head_first": 0, "head_rows": 0, "head_logits": 1}
        self.sizes = {v: known[v.name] for v in self.lowered.plan.sizes}
        self.kept: dict[Buf, npt.NDArray[np.generic]] = {}
        named = {"weights": blob, "vectors": vectors}
        for table, (cos, sin) in self.lowered.tables.items():
            angle = np.arange(slots)[:, None] * np.asarray(frequencies(table, source))[None]
            named |= {cos.name: np.cos(angle), sin.name: np.sin(angle)}
        for b in self.lowered.plan.bufs:
            if b.role.value in ("weights", "state"):
                made = named.get(b.buf.name)
                shape = self.shape(b.buf)
                empty = np.zeros(shape, b.buf.dtype.numpy)
                self.kept[b.buf] = empty if made is None else made.astype(b.buf.dtype.numpy)

    def shape(self, buf: Buf) -> tuple[int, ...]:
        return tuple(size_of(d, self.sizes) for d in buf.shape)

    def forward(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Floats:
        m = len(tokens)
        self.sizes = {
            v: {"m": m, "length": self.length, "head_rows": m}.get(v.name, n)
            for v, n in self.sizes.items()
        }
        depth, path = chain(m, 64) if parents is None else tree(parents, 64)
        given = {"tokens": tokens, "positions": self.length + depth, "depth": depth, "path": path}
        arrays = dict(self.kept)
        for b in self.lowered.plan.bufs:
            if b.buf not in arrays:
                # Anything but zeros: what the plan reads before it writes would show.
                arrays[b.buf] = np.full(self.shape(b.buf), 77, b.buf.dtype.numpy)
            if b.buf.name in given:
                arrays[b.buf] = np.asarray(given[b.buf.name], b.buf.dtype.numpy)
        run_plan(self.lowered.plan, arrays, self.sizes, workers=3)
        self.length += m
        logits: Floats = arrays[self.lowered.logits][:, : self.lowered.vocab].astype(np.float32)
        assert (arrays[self.lowered.picks] == logits.argmax(axis=1)).all()
        return logits


PLANS = {
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160), "q4_1"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
    "mxfp4, kv f16": Spec(Tiny(seed=6), "mxfp4"),
    "nvfp4 by tensor, kv i8": Spec(Tiny(seed=7, tied=False, layers=1), "nvfp4_rows", "i8"),
    "fp8, kv f16": Spec(Tiny(seed=9), "fp8", kind="llama"),
    "nvfp4 by nvfp4": Spec(Tiny(seed=7, layers=1), "nvfp4", activations="nvfp4"),
    "f16 by f16": Spec(Tiny(seed=10, layers=1), "f16", activations="f16"),
    "attention in halves": Spec(Tiny(seed=13, layers=1), "q8_0", attention="f16"),
    "bf16 by bf16": Spec(Tiny(seed=11, layers=1, tied=False), "bf16", activations="bf16"),
    "fp8 by fp8": Spec(Tiny(seed=12, layers=1), "fp8", kind="llama", activations="fp8"),
}


@pytest.mark.parametrize("which", PLANS)
def test_plan_machine_equals_cpu(which: str, tmp_path: Path) -> None:
    """Bit for bit: a chain, a tree, and what follows, with three workers and with one."""
    spec = PLANS[which]
    machine = PlanSession(spec, tmp_path)
    cpu = compiled(spec).session(context=64)
    tokens = tokens_of(spec.tiny, 30)
    assert same_bits(machine.forward(tokens[:17]), cpu.forward(tokens[:17]))
    nodes, parents = tokens[17:22], [-1, 0, 0, 1, -1]
    assert same_bits(machine.forward(nodes, parents), cpu.forward(nodes, parents=parents))
    machine.length = 17
    cpu.truncate(17)
    assert same_bits(machine.forward(tokens[22:25]), cpu.forward(tokens[22:25]))


@pytest.mark.parametrize("which", ["q4_1, kv f16", "mxfp4, kv f16"])
def test_cpu_equals_graph_interpreter(which: str) -> None:
    """The interpreter quantises activations alike but sums in another order.

    Orders differ by some 1e-7 of a sum. Where that turns a code of an activation into the next one,
    a logit moves by 1/127 of an activation times a weight: so most logits agree to 1e-6 of the
    largest, and all of them to 1/127.
    """
    spec = PLANS[which]
    tokens = tokens_of(spec.tiny, 40)
    kinds = dict.fromkeys(stored(spec.tiny), spec.fmt) | {"token_embd.weight": "q8_0"}
    weights = stored(spec.tiny, kinds)
    graph = build_llama(config_of(spec.tiny), weight_types(weights), context=64, cache=F16)
    expected = TinySession(graph, weights, 64, "int8").forward(tokens)
    gap = np.abs(compiled(spec).session().forward(tokens) - expected) / np.abs(expected).max()
    assert gap.max() < 1 / 127
    assert np.median(gap) < 1e-6
    exact = TinySession(graph, weights, 64).forward(tokens)
    assert np.median(np.abs(exact - expected)) / np.abs(expected).max() > 1e-4
