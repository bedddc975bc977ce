"""Kernels as objects of their own: built once for their content, linked into one library."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import Built, Spec, golden, model_file, same_bits, single
from models import Tiny
from proof_program import Proof, inputs, proof_program

from speccc.build_step import build_step, step_key
from speccc.driver import CompileOptions, compile_to
from speccc.errors import UnsupportedError
from speccc.ir.plan import Plan
from speccc.ir.schedule import Schedule
from speccc.knobs import CACHE_DIR
from speccc.passes.plan_memory import Arena
from speccc.runtime.artifact_file import read_entries
from speccc.targets.cpu import link, objects
from speccc.targets.cpu.isa import by_name, detect
from speccc.targets.cpu.kernel_function import Source, kernel_function
from speccc.targets.cpu.object_store import MemoryObjects
from speccc.targets.cpu.target import CpuTarget

ARENA = Arena({}, 0)
ROWS = 4
SPEC = Spec(Tiny(layers=2, hidden=32, heads=2, kv_heads=1, ffn=32), "f32")


class Counting(MemoryObjects):
    """A store that remembers what was put into it."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        super().__init__({})
        object.__setattr__(self, "made", [])

    made: list[str]

    def put(self, key: str, data: bytes) -> None:
        """Keeps an object and its key's place in line."""
        self.made.append(key)
        super().put(key, data)


def two() -> tuple[Proof, Plan]:
    """A plan of two kernels that compute the same on the same buffers, under two names."""
    p = proof_program(64, 16, widths=(2, 1))
    return p, single([p.kernel, replace(p.kernel, name="again")])


def rebuilt(store: Counting, plan: Plan, p: Proof, schedules: dict[str, Schedule]) -> int:
    """How many objects a build adds to a store."""
    before = len(store.made)
    CpuTarget(detect()).compile(plan, ARENA, {p.m: ROWS}, schedules, store)
    return len(store.made) - before


def test_equal_kernels_share_an_object() -> None:
    """Two names, one function: the step, and a kernel it calls twice; and the bits are right."""
    p, plan = two()
    rendered = CpuTarget(detect()).render(plan, ARENA, {p.m: ROWS})
    (kernel,) = rendered.kernels
    assert rendered.step.text.count(kernel.symbol) == 2
    store = Counting()
    made = CpuTarget(detect()).compile(plan, ARENA, {p.m: ROWS}, objects=store)
    assert len(store.made) == 2
    arrays = inputs(p, 3)
    library = np.frombuffer(made.library, np.uint8)
    ours = Built(plan, library, made.signature).run(arrays, {p.m: 3}, workers=2)
    theirs = golden(plan, arrays, {p.m: 3}, workers=2)
    assert all(same_bits(ours[b], theirs[b]) for b in arrays)


def test_names_of_buffers_do_not_matter() -> None:
    """Programs made anew, with other names, are the same function; another size is another."""
    one, same, other = (
        kernel_function(detect(), p.kernel, {p.m: ROWS}, Schedule())
        for p in (proof_program(64, 16), renamed(proof_program(64, 16)), proof_program(64, 32))
    )
    assert one.script != same.script
    assert one.symbol == same.symbol != other.symbol


def renamed(p: Proof) -> Proof:
    """The program with other names of its buffers, which are known by identity."""
    for n, buf in enumerate(p.kernel.bufs):
        object.__setattr__(buf, "name", f"other{n}")
    return p


def test_a_schedule_rebuilds_its_kernel_alone() -> None:
    p, plan = two()
    store = Counting()
    assert rebuilt(store, plan, p, {}) == 2
    assert rebuilt(store, plan, p, {}) == 0
    # The other kernel keeps its object; the step calls a new symbol.
    assert rebuilt(store, plan, p, {"again": Schedule(rows=1)}) == 2
    assert rebuilt(store, plan, p, {"again": Schedule(rows=1)}) == 0


def test_threads_build_the_same_objects() -> None:
    sources = [
        kernel_function(detect(), p.kernel, {p.m: ROWS}, Schedule()).to_build()
        for p in (proof_program(64, 16 * n, widths=(2, 1)) for n in range(1, 7))
    ]
    one = objects.build_objects(detect(), sources, MemoryObjects(), 1)
    many = objects.build_objects(detect(), sources, MemoryObjects(), 4)
    assert one == many
    assert len(set(one)) == len(sources)
    assert link.link(one) == link.link(many)


def test_an_object_is_of_its_target_and_text() -> None:
    source = Source(None, "f", "text")
    keys = {
        objects.object_key(by_name(isa), changed)
        for isa in ("avx2", "avx512vnni", "portable")
        for changed in (
            source,
            replace(source, text="other"),
            replace(source, symbol="g"),
            replace(source, packed=True),
        )
    }
    assert len(keys) == 12


def test_a_failing_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not swallowed by the threads, and nothing is kept."""
    p, plan = two()
    store = Counting()
    monkeypatch.setattr(objects, "build_object", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        rebuilt(store, plan, p, {})
    assert not store.made


def test_no_compiler_to_link_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="install gcc, or set CC"):
        link.link([b""])


def test_what_is_no_object_does_not_link() -> None:
    with pytest.raises(Exception, match="failed to link a kernel"):
        link.link([b"no object"])


def test_a_kept_step_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    p, plan = two()
    store = MemoryObjects()
    first = build_step(plan, ARENA, {p.m: ROWS}, {}, detect(), store)
    monkeypatch.setattr(CpuTarget, "compile", lambda *_: pytest.fail("built again"))
    p, plan = two()  # another run makes its own plan
    second = build_step(plan, ARENA, {p.m: ROWS}, {}, detect(), store)
    assert second == first


def test_the_key_has_all_that_matters() -> None:
    p, plan = two()
    isa, arena, bounds = detect(), Arena({}, 0), {p.m: ROWS}
    first = step_key(plan, arena, bounds, {}, isa)
    tall = Schedule(rows=7)
    others = [
        step_key(single([p.kernel]), arena, bounds, {}, isa),
        step_key(plan, Arena({}, 16), bounds, {}, isa),
        step_key(plan, arena, {p.m: ROWS + 1}, {}, isa),
        step_key(plan, arena, bounds, {"again": tall}, isa),
        step_key(plan, arena, bounds, {p.kernel.name: tall}, isa),
        step_key(plan, arena, bounds, {}, by_name("portable")),
    ]
    assert len({first, *others}) == 7
    assert first == step_key(plan, arena, bounds, {"again": Schedule(), "absent": tall}, isa)


def test_two_compiles_give_one_artifact(tmp_path: Path) -> None:
    """Built twice from nothing: equal to the last byte, but for how long it took."""
    path = model_file(SPEC, tmp_path)
    for name in ("a", "b"):
        compile_to(path, tmp_path / name, CompileOptions(measure=False))
    a, b = (read_entries(tmp_path / name) for name in ("a", "b"))
    assert {n: bytes(d) for n, d in a.data.items()} == {n: bytes(d) for n, d in b.data.items()}
    times = ("pass_times", "memory_plan")  # the plan has the memory free at that moment
    rest = [{k: v for k, v in e.manifest.items() if k not in times} for e in (a, b)]
    assert rest[0] == rest[1]


SECOND = """
import sys
from pathlib import Path
from speccc.driver import CompileOptions, compile_to
compile_to(Path(sys.argv[1]), Path(sys.argv[2]), CompileOptions(measure=False))
print(*(name for name in sys.argv[3:] if name in sys.modules))
"""
BUILDS = ("tvm", "speccc.targets.cpu.render_tile")
NEVER = ("networkx", "gguf", "speccc.targets.devices", "speccc.ir.interp_tile")
"""Slow to import, and needed for other targets, other files or tests."""


def test_the_second_compile_does_without_tvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_DIR.name, str(tmp_path / "cache"))
    path = model_file(SPEC, tmp_path)
    said = []
    for name in ("a", "b"):
        command = [sys.executable, "-c", SECOND, str(path), str(tmp_path / name), *BUILDS, *NEVER]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        said.append(done.stdout.split())
    assert said == [list(BUILDS), []]
    a, b = (read_entries(tmp_path / name) for name in ("a", "b"))
    assert bytes(a.data["step.so"]) == bytes(b.data["step.so"])
    assert bytes(a.data["step.tir.txt"]) == bytes(b.data["step.tir.txt"])
