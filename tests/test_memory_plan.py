"""The memory plan: equal to what a session allocates, and the context it promises fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cpu_rig import Spec, compiled
from hypothesis import given
from hypothesis import strategies as st
from models import Tiny, tiny_llama

from speccc import memory_plan
from speccc.api import Model, load
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError
from speccc.memory_plan import available_memory, check_product, longest_context, plan_memory
from speccc.runtime.session import CpuSession
from speccc.runtime.step_spec import read_step
from speccc.targets.devices import ARCHS
from speccc.targets.devices.profile import Device, Fact, Profile

SPEC = Spec(Tiny(layers=1, hidden=32, heads=2, kv_heads=1, ffn=32), "f32")
WIDE = Spec(Tiny(seed=3, head_dim=64, kv_heads=1), "q8_0", "i8")
MB = 1 << 20


def allocated(session: CpuSession) -> int:
    return sum(a.nbytes for a in session._arrays.values())


@pytest.mark.parametrize("spec", [SPEC, WIDE])
@pytest.mark.parametrize("context", [1, 16, 17, 500])
def test_the_plan_is_what_a_session_allocates(spec: Spec, context: int) -> None:
    model = compiled(spec)
    session = model.session(context=context, threads=3)
    weights = sum(len(model._entries.data[n]) for n in ("weights", "vectors"))
    assert plan_memory(session.spec, weights, context, 3).total == allocated(session)


def test_the_manifest_has_the_plan() -> None:
    model = compiled(SPEC)
    plan = model.manifest["memory_plan"]
    parts = ("weights", "kv_cache", "rope_tables", "scores", "logits", "inputs", "activations")
    assert plan["total"] == sum(plan[p] for p in parts) + plan["threads"] * plan["scratch"]
    session = model.session(threads=plan["threads"])
    assert plan["total"] == allocated(session)
    assert 1 <= plan["longest_context_tokens"] <= 1024
    # 1 layer, 1 KV head of 16: K and V in f16 by slot
    assert plan["kv_cache"] == plan["context_tokens"] * 2 * 16 * 2


@given(st.integers(0, 1 << 24), st.integers(1, 8), st.integers(1, 100_000))
def test_the_longest_context_fits_and_one_more_tile_does_not(
    room: int, threads: int, most: int
) -> None:
    spec = read_step(compiled(SPEC)._entries)
    longest = longest_context(spec, 1000, threads, most, room)
    assert 0 <= longest <= most
    if longest:
        assert plan_memory(spec, 1000, longest, threads).total <= room
    if longest < most:
        assert plan_memory(spec, 1000, longest + 16, threads).total > room


def test_a_session_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled(SPEC)
    monkeypatch.setattr(memory_plan, "available_memory", lambda: 400_000)
    with pytest.raises(InputError, match=r"a context of 1024 needs .* MB, 0.4 MB are available"):
        model.session(context=1024)
    with pytest.raises(InputError, match=r"give -c (\d+) or less") as caught:
        model.session(context=1024)
    model.session(context=int(str(caught.value).split("-c ")[1].split()[0])).forward([1])
    monkeypatch.setattr(memory_plan, "available_memory", lambda: 1000)
    with pytest.raises(InputError, match="free some memory"):
        model.session(context=16)
    monkeypatch.setattr(memory_plan, "available_memory", lambda: None)
    model.session(context=1024)


def card(memory: int | None) -> Profile:
    known = None if memory is None else Fact(memory, "https://example.org")
    return Profile(ARCHS["cuda:sm_86"], Device("card", "Card 1", ("cuda:sm_86",), memory=known))


def test_a_session_that_does_not_fit_the_product_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever this machine has: it is not where the session will run."""
    spec = read_step(compiled(SPEC)._entries)
    monkeypatch.setattr(memory_plan, "available_memory", lambda: 2000)
    need = plan_memory(spec, 1000, 1024, 1).total
    for room in (need, None):
        check_product(spec, 1000, 1024, card(room))
    check_product(spec, 1000, 1024, Profile(ARCHS["cuda:sm_86"]))
    says = (
        r"^--target cuda:card: a context of 1024 needs .* GiB, Card 1 has .* GiB: "
        r"give -c (\d+) or less, or --target cuda:sm_86 for one that has$"
    )
    with pytest.raises(InputError, match=says) as caught:
        check_product(spec, 1000, 1024, card(need - 1))
    check_product(spec, 1000, int(str(caught.value).split("-c ")[1].split()[0]), card(need - 1))
    with pytest.raises(InputError, match="take a product with more, or --target cuda:sm_86"):
        check_product(spec, 1000, 1024, card(1000))
    with pytest.raises(InputError, match=r"packing its weights takes 0.0 MB, 0.0 MB are available"):
        check_product(spec, 2001, 1024, card(need))


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:   8000 kB\n"}
LIMITS: dict[str, tuple[dict[str, str], int | None]] = {
    "nothing known": ({}, None),
    "no cgroup": (MEMINFO, 8000 * 1024),
    "a limit two groups up": (
        {
            **MEMINFO,
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": "5000\n",
            "sys/fs/cgroup/a/memory.current": "3000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 2000\ninactive_file 500\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "3000\n",
        },
        2500,
    ),
    "version 1": (
        {
            **MEMINFO,
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n3:memory:/x\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "7000\n",
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000\n",
        },
        6000,
    ),
    "over the limit": (
        {
            **MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "5000\n",
            "sys/fs/cgroup/memory.current": "9000\n",
        },
        0,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_available_memory(name: str, tmp_path: Path) -> None:
    files, expected = LIMITS[name]
    assert available_memory(system(tmp_path, files)) == expected


PEAK = """
import sys
import numpy, speccc
from speccc.api import load

def peak(field="VmHWM:"):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024

model = load(sys.argv[1])
model.session(context=16).forward([1])  # the runtime, its threads and the code are in memory
before = peak("VmRSS:")
session = model.session(context=int(sys.argv[2]), threads=2)
session.prefill([1] * int(sys.argv[2]))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_the_plan_is_the_measured_peak(tmp_path: Path) -> None:
    """A cache of 64 MB in a process of its own: the peak grows by the plan's, up to 8 MB.

    The 8 MB are pages of the allocator and NumPy's temporaries of the RoPE tables (3 of
    [context, pairs] f64, 3 MB here).
    """
    model = big_cache(tmp_path)
    context = 8192
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(model.path), str(context)],
        capture_output=True,
        text=True,
        check=True,
    )
    session = read_step(model._entries)
    plan = plan_memory(session, 0, context, 2)
    assert plan.kv_cache == 64 * MB
    assert abs(int(done.stdout) - plan.total) < 8 * MB, (done.stdout, plan)


def big_cache(folder: Path) -> Model:
    """Compiled without measuring: a chunk that noise had split would not touch all its scores."""
    tiny = Tiny(layers=2, hidden=64, heads=8, kv_heads=8, head_dim=128, ffn=32, context=8192)
    path = tiny_llama(folder, fmt="f32", tiny=tiny)
    compile_to(path, folder / "m.speccc", CompileOptions(context=64, measure=False))
    return load(folder / "m.speccc")
