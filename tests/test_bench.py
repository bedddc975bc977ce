"""The bench: what it asks, how it sums up, and that its yardsticks agree with known numbers."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import Tiny, tiny_llama

from speccc.bench.client import Client
from speccc.bench.float32 import Float32Session
from speccc.bench.measure import Settings, measure
from speccc.bench.memory import peak_memory
from speccc.bench.quality import compare, log_softmax, measure_quality
from speccc.bench.roofline import read_traffic
from speccc.bench.tasks import Task
from speccc.bench.text import bench_text
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError, SpecccError
from speccc.ir.frontends import open_model
from speccc.runtime.artifact_file import read_entries
from speccc.runtime.tokenizer import Tokenizer

TASKS = (Task("one", "One", "x", 8), Task("two", "Two", "y", 8))
SETTINGS = Settings(rounds=3, repeat=2, depth=16, widths=(1, 2, 4), tasks=TASKS, prompt_tokens=32)


class Scripted:
    """An engine whose k-th answer to a question takes k times as long; it keeps what was asked."""

    def __init__(self, kind: str, log: list[tuple[str, str]], *, lossless: bool = True) -> None:
        self.kind = kind
        self.log = log
        self.lossless = lossless
        self.counts: dict[Any, int] = defaultdict(int)

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        self.log.append((self.kind, op))
        self.counts[op, request.get("width")] += 1
        turn = self.counts[op, request.get("width")]
        return getattr(self, f"on_{op}")(turn, **request)  # type: ignore[no-any-return]

    def on_verify(self, turn: int, **request: Any) -> dict[str, Any]:
        # The first turn warms up: were it counted, the median would show it.
        ms = 1000.0 if turn == 1 else float(turn * request["width"])
        return {"ms": [ms] * request["repeat"]}

    def on_generate(self, turn: int, **request: Any) -> dict[str, Any]:
        drafted = request["drafter"] == "ngram"
        tokens = [1, 2, 3 + (drafted and not self.lossless)]
        return {
            "tokens": tokens,
            "finish_reason": "stop",
            "prefill_tok_s": 10.0 * turn,
            "tok_s": 200.0 if drafted else 100.0,
            "acceptance_length": 2.5 if drafted else 1.0,
            "tokens_per_round": 2.0 if drafted else 1.0,
        }

    def on_encode(self, turn: int, **request: Any) -> dict[str, Any]:
        return {"tokens": [5, 6]}

    def on_facts(self, turn: int, **request: Any) -> dict[str, Any]:
        return {"engine": self.kind}

    def on_memory(self, turn: int, **request: Any) -> dict[str, Any]:
        return {"peak_memory_bytes": 7}


pytestmark = pytest.mark.usefixtures("shared_kernels")


def quiet(work: str, done: int, total: int) -> None:
    """No bars."""


def test_medians_over_alternating_rounds() -> None:
    log: list[tuple[str, str]] = []
    ours, theirs = Scripted("a", log), Scripted("b", log, lossless=False)
    moments: list[int] = []
    first, second = measure(
        [ours, theirs], range(64), SETTINGS, quiet, lambda: moments.append(len(log))
    )
    # Turns 2, 3, 4 of each width are counted; the median turn is 3.
    assert first.verify_ms == {1: 3.0, 2: 6.0, 4: 12.0}
    assert first.verify_quartiles_ms[2] == (4.5, 7.5)  # of 4 4 6 6 8 8
    assert (first.prefill_tok_s, first.plain_tok_s, first.speculative_tok_s) == (20.0, 100.0, 200.0)
    assert first.tasks["one"].acceptance_length == 2.5
    assert first.identical
    assert not second.identical
    assert not second.tasks["two"].identical
    assert first.peak_memory_bytes == 7
    # Beside the passes of the least of 3 widths, in the 3 rounds after the first.
    assert moments == [6 * turn + 2 for turn in (1, 2, 3)]
    timed = [kind for kind, op in log if op in ("verify", "generate")]
    assert timed == ["a", "b"] * (len(timed) // 2)
    assert [kind for kind, op in log if op == "encode"] == ["a", "a"]


def test_a_text_too_short_is_refused() -> None:
    with pytest.raises(InputError, match="has 20 tokens, the bench needs 32"):
        measure([Scripted("a", [])], range(20), SETTINGS, quiet)


def test_quality_against_numbers_worked_out_by_hand() -> None:
    p = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    q = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], np.float32)) + 3  # shift: no change
    same = compare(p, p + 7, [0, 1])
    # f32 logs carry about 1e-7 of rounding, squared and less in a KL.
    assert same.mean_kl == pytest.approx(0, abs=1e-6)
    assert same.top1_agreement == 1.0
    other = compare(p, q, [0, 1])
    assert other.mean_kl == pytest.approx((0.5 * np.log(2) - 0.25 * np.log(2)) / 2, rel=1e-5)
    assert other.top1_agreement == 0.5
    assert other.perplexity == pytest.approx(1 / 0.5, rel=1e-5)  # token 1 after row 0
    assert np.exp(log_softmax(q)).sum(axis=-1) == pytest.approx(1.0)
    with pytest.raises(InputError):
        compare(p, q[:1], [0, 1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    return tiny_llama(folder, fmt="q8_0", tiny=Tiny(seed=8, hidden=64, context=512))


def test_the_yardstick_is_the_same_in_pieces(model: Path) -> None:
    source = open_model(model)
    tokens = Tokenizer(source.tokenizer).encode(bench_text())[:70]
    whole, pieces = Float32Session(source, 128), Float32Session(source, 128)
    rows = np.concatenate([pieces.forward(tokens[:3]), pieces.forward(tokens[3:])])
    # Sums of at most 128 f32 terms in another order: 128 eps of the largest logit.
    bound = 128 * np.finfo(np.float32).eps * np.abs(rows).max()
    assert np.abs(whole.forward(tokens) - rows).max() <= bound
    assert len(np.unique(rows, axis=0)) > 60


def test_a_worker_answers_and_reports_errors(model: Path, tmp_path: Path) -> None:
    with Client("float32", model, 128, 1) as client:
        tokens = client.ask("encode", text="the the", chat=False)["tokens"]
        rows = client.ask("logits", tokens=tokens, path=str(tmp_path / "x.npy"))["rows"]
        assert rows == len(tokens)
        times = client.ask("verify", tokens=tokens, width=1, depth=1, repeat=3)["ms"]
        assert len(times) == 3
        assert min(times) > 0
        assert client.ask("memory")["peak_memory_bytes"] > 1 << 20
        with pytest.raises(InputError, match="only computes logits"):
            client.ask("generate", tokens=tokens, count=1, drafter="none")
        with pytest.raises(SpecccError, match="AttributeError"):
            client.ask("nonsense")
        assert client.ask("facts") == {"engine": "float32"}


def test_a_running_session_is_near_its_plan(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "m.speccc"
    compile_to(model, artifact, CompileOptions(measure=False))
    found = peak_memory(artifact, 100, 1)
    stages = list(found.stages.values())
    assert found.context == 100
    assert list(found.stages) == ["python", "imports", "load", "session", "full"]
    assert found.peak_bytes >= max(stages) >= stages[-1] > stages[0] > 0
    assert found.ratio == found.peak_bytes / found.plan_bytes > 1
    with pytest.raises(SpecccError, match=r"memory: .*no such file"):
        peak_memory(tmp_path / "absent", 100, 1)


def test_what_a_step_reads_is_in_the_manifest(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "m.speccc"
    compile_to(model, artifact, CompileOptions(measure=False))
    entries = read_entries(artifact)
    source = open_model(model)
    matrices = {n: w for n, w in source.weights.items() if len(w.shape) == 2}
    if "output.weight" in matrices:
        del matrices["token_embd.weight"]
    traffic = read_traffic(entries.manifest, "m")
    assert traffic.dots_per_row == sum(w.shape[0] * w.shape[1] for w in matrices.values())
    # q8_0 keeps its bytes when packed: 34 for 32 codes, but a panel has 16 rows.
    least = sum(len(w.raw) for w in matrices.values())
    assert (
        least
        <= traffic.weight_bytes
        <= len(entries.data["weights"]) + 4 * len(entries.data["vectors"])
    )


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.gguf"):
        Client("float32", tmp_path / "absent.gguf", 128, 1)


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="extra `bench` is not installed")
def test_llama_cpp_agrees_with_the_yardstick(model: Path) -> None:
    """The same q8_0 weights: llama.cpp rounds activations to 8 bits, so it is near, not equal."""
    with Client("float32", model, 256, 1) as reference, Client("llama.cpp", model, 256, 1) as other:
        tokens = reference.ask("encode", text=bench_text(), chat=False)["tokens"][:100]
        scores = measure_quality(reference, [other], tokens)
        assert scores["float32"].mean_kl == 0.0
        assert 0.0 < scores["llama.cpp"].mean_kl < 1e-2
        done = {
            drafter: other.ask("generate", tokens=tokens, count=20, drafter=drafter)["tokens"]
            for drafter in ("none", "ngram")
        }
        assert len(done["none"]) == len(done["ngram"]) == 20
