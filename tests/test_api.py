"""The Python API on a tiny model: every documented call, its options and its errors."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import Spec, compiled, model_file, same_bits
from models import Tiny

import speccc
from speccc import api
from speccc.api import Model
from speccc.errors import InputError
from speccc.runtime.drafter import Draft
from speccc.runtime.generate import collect
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.session import CpuSession

pytestmark = pytest.mark.usefixtures("shared_kernels")
SPEC = Spec(Tiny(seed=7, layers=2, hidden=64), "q4_1")
PROMPT = [10, 20, 30, 10, 20]


@pytest.fixture
def model() -> Model:
    return compiled(SPEC)


def test_compile_without_output_keeps_no_file(model: Model) -> None:
    """The returned model works although its temporary artifact is gone."""
    assert not model.path.exists()
    assert len(model.generate(PROMPT, max_tokens=4).tokens) == 4


def test_compile_load_and_the_names_of_the_module(tmp_path: Path) -> None:
    output = tmp_path / "m.speccc"
    made = speccc.compile(model_file(SPEC, tmp_path), target="cpu", drafter="none", output=output)
    loaded = speccc.load(str(output))
    assert made.manifest == loaded.manifest
    assert loaded.path == output
    with pytest.raises(InputError) as error:
        speccc.compile(output)
    assert str(error.value) == f"{output}: is an artifact, compiled already: speccc.load opens it"
    assert loaded.drafter(None) is None
    assert isinstance(loaded.drafter("ngram"), NgramDrafter)
    a, b = (m.generate(PROMPT, max_tokens=8) for m in (made, loaded))
    assert a.tokens == b.tokens == compiled(SPEC).generate(PROMPT, max_tokens=8).tokens


def test_generate_is_stream_collected(model: Model) -> None:
    done = model.generate("the hen", max_tokens=12)
    stream = model.stream("the hen", max_tokens=12)
    assert "".join(piece.text for piece in stream) == done.text
    assert collect(model.stream("the hen", max_tokens=12)).tokens == done.tokens
    assert done.finish_reason in ("length", "stop")
    assert done.stats.completion_tokens == len(done.tokens)
    tokens = model.tokenizer.encode("the hen")
    assert model.generate(tokens, max_tokens=12).tokens == done.tokens


def test_a_str_is_raw_text_and_chat_uses_the_template(model: Model) -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = model.tokenizer.decode(model.chat_tokens(messages))
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    reply = model.chat(messages, max_tokens=6)
    assert reply.tokens == model.generate(model.chat_tokens(messages), max_tokens=6).tokens
    assert model.generate("hi", max_tokens=6).stats.prompt_tokens == len(
        model.tokenizer.encode("hi")
    )


def test_tokenizer_round_trip(model: Model) -> None:
    text = "the rain, 42 — héllo 🙂"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3, "top_k": 40}])
def test_no_drafter_gives_the_same_text(model: Model, options: dict[str, float]) -> None:
    plain = model.generate(PROMPT * 4, max_tokens=40, drafter="none", **options)
    fast = model.generate(PROMPT * 4, max_tokens=40, drafter="ngram", **options)
    given = model.generate(PROMPT * 4, max_tokens=40, drafter=NgramDrafter(), **options)
    assert plain.tokens == fast.tokens == given.tokens
    assert plain.stats.drafted == 0


def test_seeds(model: Model) -> None:
    a, b, c = (
        model.generate(PROMPT, max_tokens=24, temperature=1.0, seed=seed).tokens
        for seed in (1, 1, 2)
    )
    assert a == b
    assert a != c


def test_stop_strings_cut_the_text(model: Model) -> None:
    free = model.generate(PROMPT, max_tokens=20, temperature=1.0, seed=5)
    stop = next(c for c in free.text[2:] if c.isascii() and c.isalpha())
    for given in ((stop,), [stop], stop):
        cut = model.generate(PROMPT, max_tokens=20, temperature=1.0, seed=5, stop=given)
        assert cut.finish_reason == "stop"
        assert cut.text == free.text[: free.text.index(stop)]


def test_forward_keep_and_truncate(model: Model) -> None:
    session = model.session(context=64)
    assert (session.length, session.context, session.vocab) == (0, 64, 260)
    logits = session.forward([1, 2, 3])
    assert logits.shape == (3, 260)
    assert logits.dtype == np.float32
    assert session.length == 3
    tree = session.forward([7, 8, 9], parents=[-1, 0, 0])
    assert session.length == 6
    session.keep([0, 2])
    assert session.length == 5
    after = session.forward([4])
    chain = model.session(context=64).forward([1, 2, 3, 7, 9, 4])
    assert same_bits(np.concatenate([logits, tree[[0, 2]], after]), chain)
    session.truncate(3)
    assert session.length == 3
    assert same_bits(session.forward([7]), chain[3:4])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_thread_counts_give_the_same_bits(model: Model, threads: int) -> None:
    expected = model.session(threads=1).forward(PROMPT)
    assert same_bits(model.session(threads=threads).forward(PROMPT), expected)


def test_threads_by_environment(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_THREADS", "3")
    assert model.session().threads == 3
    assert model.session(threads=2).threads == 2


@pytest.mark.parametrize("threads", [0, -1, 10**6])
def test_thread_counts_that_make_no_sense(model: Model, threads: int) -> None:
    with pytest.raises(InputError, match=rf"^{threads} threads: give 1 to"):
        model.session(threads=threads)


@pytest.mark.parametrize("context", [0, -5, 1025])
def test_contexts_that_make_no_sense(model: Model, context: int) -> None:
    with pytest.raises(InputError, match=rf"a context of {context}: the model takes 1 to 1024"):
        model.session(context=context)


@pytest.mark.parametrize(("field", "value"), [("context", "x"), ("context", 1.5), ("threads", "2")])
def test_a_session_takes_whole_numbers(model: Model, field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{field}: give whole numbers"):
        model.session(**{field: value})


def test_default_context_is_the_compiled_one(model: Model) -> None:
    assert model.session().context == model.manifest["context"] == 1024


def test_two_sessions_share_a_model_and_nothing_else(model: Model) -> None:
    a, b = model.session(context=32), model.session(context=32)
    first = a.forward([1, 2])
    b.forward([9, 9, 9])
    assert same_bits(a.forward([3]), model.session(context=32).forward([1, 2, 3])[2:])
    assert (a.length, b.length) == (3, 3)
    assert same_bits(first, model.session(context=32).forward([1, 2]))
    assert np.shares_memory(a._arrays["weights"], b._arrays["weights"])


BAD_CALLS = {
    "a token of another vocabulary": (lambda s: s.forward([260]), "outside the vocabulary"),
    "a negative token": (lambda s: s.forward([-1]), "outside the vocabulary"),
    "no tokens": (lambda s: s.forward([]), "no tokens"),
    "too many tokens": (lambda s: s.forward([1] * 30), "do not fit a context of 32"),
    "a later parent": (lambda s: s.forward([1, 2], parents=[1, -1]), "parents"),
    "few parents": (lambda s: s.forward([1, 2], parents=[-1]), "one parent a token"),
    "a cut forward": (lambda s: s.truncate(99), "cannot cut"),
    "a path that is none": (lambda s: s.keep([1]), "not one path"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_session_survives_a_bad_call(model: Model, name: str) -> None:
    call, words = BAD_CALLS[name]
    session = model.session(context=32)
    session.forward([1, 2, 3])
    with pytest.raises(InputError, match=words):
        call(session)
    assert session.length == 3
    expected = model.session(context=32).forward([1, 2, 3, 4])[3:]
    assert same_bits(session.forward([4]), expected)


class Failing:
    """A drafter whose second guess raises."""

    name = "failing"

    def __init__(self) -> None:
        self.rounds = 0

    def start(self, prompt: Sequence[int]) -> Failing:
        return self

    def propose(self, context: Sequence[int], k: int) -> Draft:
        self.rounds += 1
        if self.rounds == 2:
            raise RuntimeError("on purpose")
        return Draft((1,))

    def observe(self, tokens: Sequence[int]) -> None:
        """Learns nothing."""


def test_a_session_is_used_again_after_an_exception(model: Model) -> None:
    """A drafter that fails in the middle leaves the session fit for the next request."""

    session = model.session()
    with pytest.raises(RuntimeError, match="on purpose"):
        model.generate(PROMPT, max_tokens=20, drafter=Failing(), session=session)
    assert session.length >= len(PROMPT)
    session.truncate(0)
    again = model.generate(PROMPT, max_tokens=20, session=session)
    assert again.tokens == model.generate(PROMPT, max_tokens=20).tokens


def test_a_session_goes_on_where_it_was(model: Model) -> None:
    session = model.session()
    first = model.generate(PROMPT, max_tokens=8, session=session)
    longer = [*PROMPT, *first.tokens, 5]
    second = model.generate(longer, max_tokens=8, session=session)
    assert second.tokens == model.generate(longer, max_tokens=8).tokens
    assert second.stats.prompt_tokens == len(longer)


def test_prompts_that_cannot_be(model: Model) -> None:
    with pytest.raises(InputError, match="context"):
        model.generate([1] * 40, max_tokens=4, context=32)
    with pytest.raises(InputError, match="outside the vocabulary"):
        model.generate([10**6], max_tokens=4)
    with pytest.raises(InputError, match="drafter 'eagle': choose ngram or none"):
        model.generate(PROMPT, max_tokens=4, drafter="eagle")
    with pytest.raises(InputError, match="temperature"):
        model.generate(PROMPT, max_tokens=4, temperature=math.nan)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    made = compiled(SPEC)
    entries = made._entries
    bare = api.Entries(
        entries.path,
        entries.manifest,
        {n: d for n, d in entries.data.items() if n != "chat_template.jinja"},
        entries.mapped,
    )
    with pytest.raises(InputError, match="no chat template: give a raw prompt"):
        Model(bare).chat([{"role": "user", "content": "hi"}])


def test_progress_of_a_prompt(model: Model) -> None:
    seen: list[tuple[int, int]] = []
    model.generate([3] * 200, max_tokens=2, on_progress=lambda *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] > 64
    assert seen == sorted(seen)


def test_keep_needs_rows(model: Model) -> None:
    session: CpuSession = model.session(context=16)
    with pytest.raises(InputError):
        session.keep([0])
    assert session.length == 0


def test_rows_are_kept_only_right_after_a_forward(model: Model) -> None:
    """Before any forward, and after a cut, there is nothing to keep."""
    session = model.session(context=32)
    with pytest.raises(InputError, match="no rows to keep"):
        session.keep([])
    session.forward([1, 2])
    session.truncate(1)
    with pytest.raises(InputError, match="no rows to keep"):
        session.keep([])
    assert session.length == 1
    session.forward([1, 2], parents=[-1, -1])
    session.keep([])
    assert session.length == 1


def test_what_is_no_artifact_is_not_loaded(tmp_path: Path) -> None:
    model = model_file(SPEC, tmp_path)
    for path, says in (
        (model, "is no artifact: `speccc compile` (speccc.compile) makes one of a model"),
        (tmp_path, "is no artifact: `speccc compile` (speccc.compile) makes one of a model"),
        (tmp_path / "absent", "no such file"),
    ):
        with pytest.raises(InputError) as error:
            speccc.load(path)
        assert str(error.value) == f"{path}: {says}"


def test_a_device_is_no_model_file() -> None:
    with pytest.raises(InputError, match="is no model file but a device or a pipe"):
        speccc.compile(os.devnull)
