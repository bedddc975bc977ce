"""What the bench works out of its measurements: floors, checks, notes, tables, the picture."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from speccc.bench.ceilings import Ceilings, last_cache
from speccc.bench.long_context import AtContext, context_room, explained_ms, measure_contexts
from speccc.bench.machine import Ticks, noise_note, stolen_percent, ticks
from speccc.bench.measure import EngineResult, Settings, TaskResult, quartiles
from speccc.bench.memory import PeakMemory
from speccc.bench.plot import check_plot, plot
from speccc.bench.roofline import Traffic, read_traffic, roofline
from speccc.cli.bench_report import SpeedReport, dearer_widths
from speccc.cli.numbers import numbers
from speccc.errors import InputError, UnsupportedError

CEILINGS = Ceilings(20e9, 400e9, threads=2, buffer_bytes=1 << 28, most_read_bytes_s=25e9)
TRAFFIC = Traffic(weight_bytes=100_000_000, kv_bytes_per_token=20_000.0, dots_per_row=135_000_000)


def engine(scale: float, widths: Mapping[int, float]) -> EngineResult:
    ms = {m: scale * t for m, t in widths.items()}
    task = TaskResult(100 / scale, 300 / scale, 2.0, 2.0, 64, identical=scale == 1)
    return EngineResult(
        facts={"engine": f"e{scale}", "version": "9"},
        verify_ms=ms,
        verify_quartiles_ms={m: (0.9 * t, 1.1 * t) for m, t in ms.items()},
        prefill_tok_s=1000 / scale,
        plain_tok_s=100 / scale,
        speculative_tok_s=300 / scale,
        tasks={"edit": task},
        peak_memory_bytes=5 << 20,
    )


def report(widths: Mapping[int, float], others: tuple[float, ...] = (4.0,)) -> SpeedReport:
    results = {f"e{s}": engine(s, widths) for s in (1.0, *others)}
    contexts = {
        kind: [AtContext(c, {1: c / 100, 8: c / 50}, {1: (1, 2), 8: (1, 2)}) for c in (100, 1100)]
        for kind in results
    }
    return SpeedReport(
        settings={"rounds": 1},
        results=results,
        limits=roofline(CEILINGS, TRAFFIC, widths, 256),
        contexts=contexts,
        memory=PeakMemory(1024, 2, 150 << 20, 100 << 20, {"python": 10 << 20, "full": 90 << 20}),
    )


def test_floors_worked_out_by_hand() -> None:
    limits = roofline(CEILINGS, TRAFFIC, {1: 10.0, 4: 12.0}, depth=249)
    # 100 MB + 250 tokens of 20 kB = 105 MB at 20 GB/s
    assert limits.bandwidth_ms[1] == pytest.approx(5.25)
    assert limits.bandwidth_percent[1] == pytest.approx(52.5)
    assert limits.bandwidth_ms[4] == pytest.approx(5.253)
    assert limits.compute_ms[4] == pytest.approx(4 * 0.3375)
    assert explained_ms(4096, 64, 20_000, 20e9) == pytest.approx(4.032)


def test_traffic_of_an_old_artifact_is_named() -> None:
    told = {"traffic": {"weight_bytes": 5, "dots_per_row": 7}, "kv": {"bytes_per_token": 1.5}}
    assert read_traffic(told, "x") == Traffic(5, 1.5, 7)
    with pytest.raises(InputError, match=r"old\.speccc: manifest\.json: traffic is missing"):
        read_traffic({"kv": {"bytes_per_token": 2}}, "old.speccc")


def test_widths_dearer_than_the_next() -> None:
    assert dearer_widths({1: 3.0, 2: 3.0, 4: 2.0, 8: 9.0}) == [(2, 4)]
    assert dearer_widths({1: 1.0}) == []


def test_quartiles() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0)


def test_tables_show_ratios_checks_and_what_kv_explains(capsys: pytest.CaptureFixture[str]) -> None:
    report({1: 6.0, 2: 7.5, 4: 7.0}).show()
    shown = capsys.readouterr().out
    lines = {tuple(line.split()) for line in shown.splitlines()}
    assert ("m", "=", "2", "7.50", "[6.75", "8.25]", "30.00", "[27.00", "33.00]", "0.250",
            "1.25", "70%") in lines  # fmt: skip
    assert "no width dearer than the next one up: no, 2 over 4 by 7.1%" in shown
    assert ("edit:", "speculative", "/", "own", "plain", "3.00x", "3.00x") in lines
    assert ("edit:", "speculative", "/", "their", "plain", "12.00x") in lines
    assert ("edit:", "identical", "yes", "no") in lines
    # 1000 tokens of 20 kB at 20 GB/s are 1 ms; T(8) grew from 2 to 22
    assert ("1100:", "T(8)", "22.00", "22.00", "1.00", "20.00", "1.00") in lines
    assert ("peak", "150.0", "MiB", "1.50x", "the", "plan") in lines


def test_alone_there_are_no_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    alone = replace(report({1: 6.0, 2: 6.0}, others=()), contexts={})
    alone.show()
    shown = capsys.readouterr().out
    assert "ratio" not in shown
    assert "behind" not in shown
    assert "no width dearer than the next one up: yes" in shown


def test_the_document_is_json_and_keeps_its_keys() -> None:
    told = json.loads(json.dumps(report({1: 6.0, 2: 6.0}).document(), allow_nan=False))
    assert told["verify_ms"] == {"1": 6.0, "2": 6.0}
    assert told["verify_quartiles_ms"]["1"] == pytest.approx([5.4, 6.6])
    assert told["against"]["e4.0"]["verify_ms"]["1"] == 24.0
    assert told["tasks"]["edit"]["identical"] is True
    assert told["roofline"]["ceilings"]["threads"] == 2
    assert told["contexts"]["e1.0"][1]["verify_ms"]["8"] == 22.0
    assert told["memory"]["ratio"] == 1.5
    assert told["dearer_widths"] == []


def test_a_busy_machine_is_noted(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 0 20 60 0 0 0 10 99 99\ncpu0 1 1 1 1\n")
    assert ticks(stat) == Ticks(100, 10)
    assert ticks(tmp_path / "absent") is None
    assert stolen_percent(Ticks(100, 10), Ticks(300, 20)) == 5.0
    assert stolen_percent(None, Ticks(1, 1)) is None
    assert stolen_percent(Ticks(5, 1), Ticks(5, 1)) is None
    assert noise_note(0.1, 0.5) is None
    assert noise_note(None, None) is None
    note = noise_note(1.25, 5.0) or ""
    assert "1.2 other processes" in note
    assert "5.0% of the time" in note


class Asked:
    """Counts what it is asked."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seen: list[tuple[int, int]] = []

    def ask(self, op: str, **request: object) -> dict[str, object]:
        tokens, width, depth = request["tokens"], request["width"], request["depth"]
        assert isinstance(tokens, list)
        assert isinstance(width, int)
        assert isinstance(depth, int)
        assert len(tokens) >= depth + width
        self.seen.append((depth, width))
        return {"ms": [float(depth + width)]}


def test_contexts_are_measured_in_turn_on_a_repeated_text() -> None:
    ours, theirs = Asked("a"), Asked("b")
    settings = Settings(rounds=2, repeat=1)
    first, second = measure_contexts(
        [ours, theirs], [1, 2, 3], [50, 20], settings, lambda work, done, total: None
    )
    assert [at.context for at in first] == [20, 50]
    assert first[1].verify_ms == {1: 51.0, 8: 58.0} == second[1].verify_ms
    assert ours.seen == theirs.seen == [(20, 1), (20, 8)] * 3 + [(50, 1), (50, 8)] * 3
    assert context_room([50, 20]) == 64


def test_lists_of_numbers() -> None:
    assert numbers("1-4, 8,8,64", 1, 64) == (1, 2, 3, 4, 8, 64)
    assert numbers("", 1, 64) == ()
    for bad in ("x", "0", "65", "4-2", "1-", "-3", "1,,2", "²"):
        with pytest.raises(ValueError, match="is no"):
            numbers(bad, 1, 64)


def test_the_largest_cache(tmp_path: Path) -> None:
    for n, text in enumerate(("32K\n", "1024K\n", "33M\n", "odd\n")):
        (tmp_path / f"index{n}").mkdir()
        (tmp_path / f"index{n}" / "size").write_text(text)
    assert last_cache(tmp_path) == 33 << 20
    assert last_cache(tmp_path / "none") == 32 << 20


def test_the_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'speccc\[bench\]'"):
        check_plot(tmp_path / "x.png")


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = report({1: 6.0, 2: 7.0, 64: 70.0})
    plot(tmp_path / "x.png", made.results, made.limits, "title", "below it")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    plot(tmp_path / "x.svg", made.results, made.limits, "title", "below it")
    svg = (tmp_path / "x.svg").read_text()
    for label in ("e1.0 9", "e4.0 9", "read once at 20.0 GB/s", "400 G int8", "below it", "T(m)"):
        assert f"<!-- {label}" in svg
    with pytest.raises(InputError, match="--plot"):
        check_plot(tmp_path / "x.gif")
    with pytest.raises(InputError, match="no such folder"):
        check_plot(tmp_path / "absent" / "x.png")


def test_goals_are_judged(tmp_path: Path) -> None:
    made = report({1: 6.0, 4: 6.0, 8: 10.0, 16: 11.0}, others=())
    made.results["llama.cpp"] = engine(4.0, {1: 6.0, 4: 6.0, 8: 10.0, 16: 11.0})
    told = tmp_path / "r.json"
    told.write_text(json.dumps(made.document()))
    done = subprocess.run(
        [sys.executable, "benchmarks/goals.py", str(told)],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["ok", "T(1)", "/", "llama.cpp's", "0.250", "<=", "0.5"] in lines
    assert ["MISS", "T(4)", "/", "llama.cpp's", "0.250", "<=", "0.2"] in lines
    assert ["ok", "T(1),", "%", "of", "bandwidth", "87.617", ">=", "80"] in lines
    assert ["ok", "edit", "/", "llama.cpp's", "plain", "12.000", ">=", "5"] in lines
    assert ["MISS", "peak", "memory", "/", "plan", "1.500", "<=", "1.25"] in lines
