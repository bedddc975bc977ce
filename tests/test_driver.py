"""The compile driver: what it reports, dumps, measures and refuses."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_rig import Spec, model_file
from models import Tiny

import speccc
from speccc import driver, memory_plan, verify_cost
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError, UnsupportedError
from speccc.runtime.artifact_file import read_entries
from speccc.targets.cpu.target import CpuTarget
from speccc.targets.devices import DEVICES, PROFILES
from speccc.targets.devices.profile import Fact

TINY = Tiny(layers=2, hidden=32, heads=2, kv_heads=1, ffn=32)
SPEC = Spec(TINY, "f32")


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out LLVM: the step has no code."""
    monkeypatch.setattr(CpuTarget, "library", lambda *_: b"")


def quick(**options: object) -> CompileOptions:
    return CompileOptions(measure=False, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unbuilt")
def test_progress_counts_every_stage_to_its_end(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = model_file(SPEC, tmp_path)
    compile_to(path, tmp_path / "o", quick(), lambda *step: told.append(step))
    stages = list(dict.fromkeys(name for name, _, _ in told))
    assert stages == ["read", "passes", "pack", "build", "write"]
    for stage in stages:
        counts = [(done, total) for name, done, total in told if name == stage]
        assert counts[-1][0] == counts[-1][1] == counts[0][1]
        assert counts == sorted(counts)
    assert sum(1 for name, _, _ in told if name == "pack") == 2 * 7 + 1  # and the tied head


@pytest.mark.usefixtures("unbuilt")
def test_times_by_pass_are_in_order(tmp_path: Path) -> None:
    compile_to(model_file(SPEC, tmp_path), tmp_path / "o", quick())
    times = read_entries(tmp_path / "o").manifest["pass_times"]
    numbered = [n for n in times if n[:2].isdigit()]
    assert numbered == sorted(numbered)
    assert len(numbered) == len(driver.GRAPH_PASSES)
    assert list(times)[:2] == ["read", "build graph"]
    assert list(times)[-4:] == ["lower", "pack", "tune", "build"]
    assert all(t >= 0 for t in times.values())


@pytest.mark.usefixtures("unbuilt")
def test_dump_has_every_stage(tmp_path: Path) -> None:
    compile_to(model_file(SPEC, tmp_path), tmp_path / "o", quick(dump=tmp_path / "d"))
    names = sorted(p.name for p in (tmp_path / "d").iterdir())
    assert names[0].startswith("00")
    assert names[-2:] == ["50-plan.tile.txt", "90-step.tir.txt"]
    assert any("roll-layers" in n for n in names)


@pytest.mark.usefixtures("unbuilt")
def test_equal_input_gives_equal_entries(tmp_path: Path) -> None:
    path = model_file(SPEC, tmp_path)
    for name in ("a", "b"):
        compile_to(path, tmp_path / name, quick())
    a, b = (read_entries(tmp_path / name) for name in ("a", "b"))
    assert {n: bytes(d) for n, d in a.data.items()} == {n: bytes(d) for n, d in b.data.items()}
    assert a.manifest["step"] == b.manifest["step"]


FOREIGN = "dotprod" if platform.machine() != "aarch64" else "avx2"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (CompileOptions(target="tpu"), "--target tpu.*cpu"),
        (CompileOptions(isa="sse9"), "--isa sse9.*avx2"),
        (CompileOptions(isa=FOREIGN), f"--isa {FOREIGN}.*this machine is"),
        (CompileOptions(kv="q2"), "--kv q2.*f16"),
        (CompileOptions(drafter="eagle"), "drafter 'eagle'.*ngram"),
    ],
)
def test_options_it_does_not_have(options: CompileOptions, words: str, tmp_path: Path) -> None:
    """Refused before the model is read: the file need not exist."""
    with pytest.raises(UnsupportedError, match=words):
        compile_to(tmp_path / "absent", tmp_path / "o", options)


@pytest.mark.parametrize("context", [0, -1, 1025])
def test_contexts_the_model_does_not_have(context: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 to 1024 tokens"):
        compile_to(model_file(SPEC, tmp_path), tmp_path / "o", CompileOptions(context=context))


def test_an_output_that_cannot_be(tmp_path: Path) -> None:
    for output in (tmp_path, tmp_path / "no" / "o"):
        with pytest.raises(InputError, match="folder"):
            compile_to(tmp_path / "absent", output, CompileOptions())


def test_what_does_not_fit_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuTarget, "compile", lambda *_: pytest.fail("built"))
    monkeypatch.setattr(memory_plan, "available_memory", lambda: 400_000)
    with pytest.raises(InputError, match=r"a context of 1024 needs .* give -c \d+ or less"):
        compile_to(model_file(SPEC, tmp_path), tmp_path / "o", CompileOptions())
    assert not (tmp_path / "o").exists()


def test_what_does_not_fit_the_product_is_refused_before_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(DEVICES["m4pro"], memory=Fact(400_000, "https://example.org"))
    monkeypatch.setitem(PROFILES, "metal:m4pro", replace(PROFILES["metal:m4pro"], device=small))
    monkeypatch.setattr(driver, "pack_weights", lambda *_: pytest.fail("packed"))
    path, options = model_file(SPEC, tmp_path), CompileOptions(target="metal:m4pro")
    with pytest.raises(InputError, match=r"metal:m4pro: a context of 1024 needs .* give -c \d+"):
        compile_to(path, tmp_path / "o", options)
    assert not (tmp_path / "o").exists()


def test_a_context_that_only_the_product_holds_is_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "available_memory", lambda: 400_000)
    path, options = model_file(SPEC, tmp_path), CompileOptions(target="metal:m4pro")
    assert compile_to(path, tmp_path / "o", options)["target"] == "metal:m4pro"


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("stage", ["pack_weights", "_manifest", "_measure"])
def test_a_failure_leaves_no_file(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_file(SPEC, tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(driver, stage, lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        compile_to(path, tmp_path / "o", quick())
    assert sorted(tmp_path.iterdir()) == before


def test_verify_cost_is_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    model = speccc.compile(model_file(SPEC, tmp_path))
    table = model.manifest["verify_ms"]
    assert [int(w) for w in table] == list(verify_cost.WIDTHS)
    assert list(table.values()) == sorted(table.values())
    assert list(model.manifest["verify_cost"]["measured_ms"]) == list(table)
    controller = model._controller(2)
    assert controller.cost.at(3) == table["3"]


def test_what_rounds_cost_is_kept_between_requests(tmp_path: Path) -> None:
    model = speccc.compile(model_file(SPEC, tmp_path))
    session = model.session(threads=1)
    model.generate([1, 2, 3], max_tokens=20, session=session)
    first = model._costs[1]
    seen = first._rounds
    assert seen > 0
    session.truncate(0)
    model.generate([1, 2, 3], max_tokens=20, session=session)
    assert model._costs == {1: first}
    assert first._rounds > seen


def test_a_second_compile_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    path = model_file(SPEC, tmp_path)
    first = speccc.compile(path).manifest
    monkeypatch.setattr(driver, "measure", lambda *_: pytest.fail("measured again"))
    second = speccc.compile(path).manifest
    assert second["verify_ms"] == first["verify_ms"]
    assert second["verify_cost"] == first["verify_cost"]
