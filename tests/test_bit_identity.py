"""A token's logits are the same bits in any number of rows, chunks, branches and threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from cpu_rig import Spec, compiled, compiled_smollm2, same_bits
from models import Tiny
from table_session import ScriptedDrafter

from speccc.api import Model
from speccc.runtime.drafter import Drafter
from speccc.runtime.session import CpuSession

Logits = npt.NDArray[np.float32]
Source = Callable[[], Model]

MODELS = {
    "f32, kv f16": Spec(Tiny(seed=1), "f32"),
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160), "q4_1"),
    "q8_0, kv i8, wide heads": Spec(Tiny(seed=3, head_dim=64, kv_heads=1), "q8_0", "i8"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
    "q4_0, kv f16, llama3": Spec(Tiny(seed=5, layers=3, kv_heads=4), "q4_0", rope="llama3"),
    "mxfp4, kv f16": Spec(Tiny(seed=6, hidden=96, heads=6, kv_heads=3, ffn=160), "mxfp4"),
    "nvfp4, kv i8": Spec(Tiny(seed=7, tied=False), "nvfp4", "i8"),
    "nvfp4 by tensor, kv f16": Spec(Tiny(seed=8, layers=1, tied=False), "nvfp4_rows"),
    "nvfp4 by nvfp4": Spec(Tiny(seed=7, layers=1), "nvfp4", activations="nvfp4"),
    "fp8, kv f16": Spec(Tiny(seed=9), "fp8", kind="llama"),
    "attention in halves": Spec(Tiny(seed=13, layers=1), "q8_0", attention="f16"),
    "f16 by f16": Spec(Tiny(seed=10, layers=1), "f16", activations="f16"),
    "bf16 by bf16": Spec(Tiny(seed=11, layers=1, tied=False), "bf16", activations="bf16"),
    "fp8 by fp8": Spec(Tiny(seed=12, layers=1), "fp8", kind="llama", activations="fp8"),
}
SOURCES: dict[str, Source] = {
    name: functools.partial(compiled, spec) for name, spec in MODELS.items()
}
EVERY = {**SOURCES, "SmolLM2": compiled_smollm2}


@pytest.fixture(params=EVERY)
def model(request: pytest.FixtureRequest) -> Model:
    return EVERY[request.param]()


def text(model: Model, count: int, seed: int = 0) -> list[int]:
    vocab = int(model.manifest["step"]["vocab"])
    return [int(t) for t in np.random.default_rng(seed).integers(0, vocab, count)]


def in_chunks(s: CpuSession, tokens: Sequence[int], chunk: int) -> Logits:
    return np.concatenate([s.forward(tokens[i : i + chunk]) for i in range(0, len(tokens), chunk)])


def alone(model: Model, tokens: Sequence[int], **options: int) -> Logits:
    """Each token by itself: what everything else is compared with."""
    return in_chunks(model.session(**options), tokens, 1)


def test_logits_are_not_trivial(model: Model) -> None:
    """The comparisons below would pass on constants: they are not constants, and text matters."""
    logits = alone(model, text(model, 12))
    assert np.isfinite(logits).all()
    assert len({row.tobytes() for row in logits}) == len(logits)
    other = alone(model, [*text(model, 12, seed=9)[:11], text(model, 12)[11]])
    assert not same_bits(logits[-1], other[-1])


def test_chains(model: Model) -> None:
    """Chains of 2..16 after a prompt whose length is not a whole number of tiles."""
    tokens = text(model, 37 + 16)
    expected = alone(model, tokens)
    s = model.session()
    s.forward(tokens[:37])
    for width in range(2, 17):
        rows = s.forward(tokens[37 : 37 + width])
        assert same_bits(rows, expected[37 : 37 + width]), width
        s.truncate(37)


def test_splits(model: Model) -> None:
    """Widths run as several passes, or with rows to spare, also where the context ends."""
    tokens = text(model, 40)
    expected = alone(model, tokens)
    s = model.session(context=40)
    s.splits = {2: (3,), 5: (4, 1), 6: (4, 3), 7: (8,), 9: (4, 4, 4), 16: (9, 8)}
    at = 0
    for width in (5, 2, 6, 7, 9, 1, 8, 2):
        rows = s.forward(tokens[at : at + width])
        at += width
        assert same_bits(rows, expected[at - width : at]), width
        assert s.length == at
    assert at == len(tokens)  # the last pair had no room to spare
    s.truncate(24)
    assert same_bits(s.forward(tokens[24:40], last=3), expected[37:])
    s.truncate(0)
    s.prefill(tokens[:39])
    assert same_bits(s.forward(tokens[39:]), expected[39:])


@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_prefill_chunks(model: Model, chunk: int) -> None:
    """512 tokens (chunks of 1 are the reference), by `forward` and by `prefill`."""
    tokens = text(model, 520)
    expected = reference(model, tuple(tokens))
    s = model.session()
    assert same_bits(in_chunks(s, tokens[:512], chunk), expected[:512])
    assert same_bits(s.forward(tokens[512:]), expected[512:])
    s.truncate(0)
    for at in range(0, 512, chunk):
        s.prefill(tokens[at : min(at + chunk, 512)])
    assert same_bits(s.forward(tokens[512:]), expected[512:])


_REFERENCES: dict[tuple[int, tuple[int, ...]], Logits] = {}


def reference(model: Model, tokens: tuple[int, ...]) -> Logits:
    key = (id(model), tokens)
    if key not in _REFERENCES:
        _REFERENCES[key] = alone(model, tokens)
    return _REFERENCES[key]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_thread_counts(model: Model, threads: int) -> None:
    tokens = text(model, 41)
    expected = alone(model, tokens, threads=1)
    many = model.session(threads=threads)
    assert same_bits(many.forward(tokens[:33]), expected[:33])
    assert same_bits(in_chunks(many, tokens[33:], 3), expected[33:])


def random_tree(rng: np.random.Generator, size: int) -> list[int]:
    return [int(rng.integers(-1, row)) if row else -1 for row in range(size)]


def path_to(parents: Sequence[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@pytest.mark.parametrize("seed", range(4))
def test_trees(model: Model, seed: int) -> None:
    """Every node of a random tree equals the chain along its path, and what follows `keep` too."""
    rng = np.random.default_rng(seed)
    prompt = text(model, int(rng.integers(1, 40)), seed)
    size = int(rng.integers(2, 20))
    nodes, parents = text(model, size, seed + 50), random_tree(rng, size)
    s, plain = model.session(), model.session()
    s.forward(prompt)
    plain.forward(prompt)
    rows = s.forward(nodes, parents=parents)
    for row in range(size):
        chain = [nodes[r] for r in path_to(parents, row)]
        assert same_bits(rows[row], plain.forward(chain)[-1]), (parents, row)
        plain.truncate(len(prompt))
    kept = path_to(parents, int(rng.integers(0, size)))
    s.keep(kept)
    assert s.length == len(prompt) + len(kept)
    plain.forward([nodes[r] for r in kept])
    after = text(model, 5, seed + 90)
    assert same_bits(s.forward(after), plain.forward(after))


def test_tree_orders(model: Model) -> None:
    """Sibling order and unrelated branches change nothing; an empty `keep` forgets them all."""
    prompt, (a, b, c, d) = text(model, 21), text(model, 4, seed=3)
    s = model.session()
    s.forward(prompt)
    one = s.forward([a, b, c, d], parents=[-1, 0, -1, 2])
    s.keep([])
    assert s.length == len(prompt)
    two = s.forward([c, a, d, b], parents=[-1, -1, 0, 1])
    assert same_bits(one, two[[1, 3, 0, 2]])


def test_truncate_and_run_again(model: Model) -> None:
    tokens, other = text(model, 60), text(model, 60, seed=8)
    s = model.session()
    first = s.forward(tokens)
    for length in (59, 33, 16, 1, 0):
        s.truncate(length)
        s.forward(other[: 60 - length])
        s.truncate(length)
        assert same_bits(s.forward(tokens[length:]), first[length:]), length


def test_sessions_do_not_meet(model: Model) -> None:
    """Two sessions of one model, in turns, and contexts of different size."""
    a, b = text(model, 20, seed=1), text(model, 20, seed=2)
    expected = [alone(model, a), alone(model, b)]
    one, two = model.session(context=33), model.session(context=600)
    got: list[list[Logits]] = [[], []]
    for at in range(0, 20, 4):
        got[0].append(one.forward(a[at : at + 4]))
        got[1].append(two.forward(b[at : at + 4]))
    for rows, want in zip(got, expected, strict=True):
        assert same_bits(np.concatenate(rows), want)


DRAFTERS: dict[str, Callable[[Sequence[int], int], Drafter | str]] = {
    "ngram": lambda plain, vocab: "ngram",
    "right": lambda plain, vocab: ScriptedDrafter(plain, vocab=vocab),
    "wrong": lambda plain, vocab: ScriptedDrafter(plain, lambda at: True, vocab),
    "half": lambda plain, vocab: ScriptedDrafter(plain, lambda at: at * 7 % 5 < 2, vocab),
    "tree": lambda plain, vocab: ScriptedDrafter(plain, vocab=vocab, branches=1),
}
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    "hot": {"temperature": 1.5},
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_speculative_text_is_plain_text(model: Model, sampling: str) -> None:
    """With every kind of drafter; the scripted ones show that drafts were really taken or not."""
    for seed in range(100):  # the first prompt and noise whose answer is long enough to draft
        options = {**SAMPLINGS[sampling], "max_tokens": 48, "seed": seed}
        prompt = [*text(model, 9, seed), *text(model, 9, seed)]
        plain = model.generate(prompt, drafter="none", **options)
        if len(plain.tokens) > 24:
            break
    vocab = int(model.manifest["step"]["vocab"])
    taken: dict[str, tuple[int, int]] = {}
    for name, make in DRAFTERS.items():
        # What rounds cost is kept between requests; of a model this small it says: do not draft.
        model._costs.clear()
        fast = model.generate(prompt, drafter=make(plain.tokens, vocab), **options)
        assert fast.tokens == plain.tokens, name
        assert (fast.text, fast.finish_reason) == (plain.text, plain.finish_reason), name
        taken[name] = (fast.stats.drafted, fast.stats.accepted)
    assert len(plain.tokens) > 24
    assert taken["right"][0] == taken["right"][1] > 0
    assert taken["wrong"][0] > 0 == taken["wrong"][1]
    assert 0 < taken["half"][1] < taken["half"][0]
    assert 0 < taken["tree"][1] < taken["tree"][0]
