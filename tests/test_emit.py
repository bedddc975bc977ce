"""`speccc emit`: a folder of sources, built code, launch plan and report, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from emulation.require import require
from models import Tiny, tiny_llama

from speccc import device_step, emit_folder, scratch
from speccc.cli import run
from speccc.emit import EmitOptions, emit_to
from speccc.emit_folder import KERNELS, LAUNCH_PLAN, REPORT, UNFINISHED
from speccc.errors import InputError, SpecccError, UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.plan import Plan, phases
from speccc.ir.tile_text import print_kernel
from speccc.passes.plan_memory import Arena
from speccc.scratch import OWNER
from speccc.targets import registry
from speccc.targets.base import Grid, Launch, RenderedPlan, Source, Step, ToolMissingError
from speccc.targets.build_error import BuildError
from speccc.targets.cpu.object_store import MemoryObjects
from speccc.targets.devices import profile
from speccc.targets.devices.profile import Profile
from speccc.targets.launch_plan import FLOAT_BYTES, plan_launches, plan_places, units

LAYERS = 2


@dataclass
class TextTarget:
    """Kernels as the text of the tile IR, "built" by upper-casing it."""

    profile: Profile = field(default_factory=lambda: profile("vulkan:lavapipe"))
    steps: Mapping[str, Step] = field(
        default_factory=lambda: {"up": lambda s: s.text.upper().encode()}
    )
    why: str | None = None
    copies: int = 1

    @property
    def name(self) -> str:
        return self.profile.name

    def unsupported(self, plan: Plan) -> str | None:
        return self.why

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        kernels = list(phases(plan.body))
        return RenderedPlan(
            self.name,
            plan.name,
            plan.sizes,
            tuple(Source(k.name, "txt", k.name, print_kernel(k)) for k in kernels) * self.copies,
            plan_places(plan, arena),
            plan_launches(
                plan.body,
                lambda k: Launch(
                    k.name,
                    tuple(b.name for b in k.bufs),
                    tuple(v.name for v in k.scalars),
                    Grid(units(k), 64),
                ),
            ),
            FLOAT_BYTES * arena.elements,
        )

    def stages(self) -> Mapping[str, Step]:
        return self.steps

    def fingerprint(self) -> str:
        return "text 1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), fmt="q4_1", tiny=Tiny(layers=LAYERS))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def failing(source: Source) -> bytes:
    raise BuildError("line 3: no", where=source.name)


def absent(source: Source) -> bytes:
    raise ToolMissingError("xtool is not installed: apt install xtool")


@pytest.mark.parametrize("error", [failing, absent])
def test_an_artifact_does_without_what_is_only_read(error: Step) -> None:
    """A driver takes one file of a kernel; a report's compiler that fails costs no more."""
    device = TextTarget(steps={"bin": lambda source: b"code", "asm": error})
    source = Source("k", "txt", "main", "text")
    assert device_step._stages(device, source, "bin", MemoryObjects()) == {"bin": b"code"}
    with pytest.raises((BuildError, ToolMissingError)):
        device_step._stages(device, source, "asm", MemoryObjects())


def test_the_folder_holds_all_of_it(model: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    report = emit_to(
        model, TextTarget(), tmp_path / "out", EmitOptions(), lambda *at: told.append(at)
    )
    files = contents(tmp_path / "out")
    plan, saved = read(tmp_path / "out" / LAUNCH_PLAN), read(tmp_path / "out" / REPORT)
    assert saved == json.loads(json.dumps(report))
    names = [k["name"] for k in saved["kernels"]]
    expected = {f"{KERNELS}/{n}.{ext}" for n in names for ext in ("txt", "up")}
    assert set(files) == expected | {LAUNCH_PLAN, REPORT}
    assert "ffn_down" in names
    for n in names:
        assert files[f"{KERNELS}/{n}.up"] == files[f"{KERNELS}/{n}.txt"].upper()
    assert told[-1][1:] == (len(names), len(names))
    loop = next(s for s in plan["launches"] if "loop" in s)
    assert loop["extent"] == LAYERS
    outside = len(plan["launches"]) - 1
    assert saved["launches_per_step"] == outside + LAYERS * len(loop["body"])
    assert saved["launches_per_step"] == plan["launches_per_step"]
    # A layer's attention merges nothing so early.
    assert saved["launches_of_first_step"] == saved["launches_per_step"] - LAYERS


def test_the_launch_plan_is_closed(model: Path, tmp_path: Path) -> None:
    """Every buffer, kernel and scalar that a launch names is declared, and the arena holds all."""
    emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    plan = read(tmp_path / "out" / LAUNCH_PLAN)
    buffers = {b["name"]: b for b in plan["buffers"]}
    kernels = {k["name"] for k in plan["kernels"]}
    loop = next(s for s in plan["launches"] if "loop" in s)
    known = {*plan["sizes"], loop["loop"]}
    launches = [s for s in plan["launches"] if "kernel" in s] + loop["body"]
    for launch in launches:
        assert launch["kernel"] in kernels
        assert set(launch["buffers"]) <= set(buffers)
        assert set(launch["scalars"]) <= known
    placed = [b for b in buffers.values() if b["role"] == "activation"]
    assert placed
    assert all(0 <= b["arena_offset"] < plan["arena_bytes"] for b in placed)
    assert all("arena_offset" not in b for b in buffers.values() if b not in placed)


def test_what_a_step_needs_and_asks_for(model: Path, tmp_path: Path) -> None:
    """Up to eight rows read the matrices once: what is asked for beyond grows by equal steps."""
    report: Any = emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    asked = {step["rows"]: step["asked"] for step in report["traffic"]}
    needed = {step["rows"]: step["needed"] for step in report["traffic"]}
    assert list(asked) == [1, 4, 8, 16]
    a, b, c = (asked[m]["weights"] for m in (1, 4, 8))
    assert (b - a) * 7 == (c - a) * 3 > 0, "norms, RoPE and an embedding a row"
    assert needed[1]["weights"] <= a < 1.1 * needed[1]["weights"]
    for m in asked:
        assert needed[m]["state"] <= asked[m]["state"]
        assert asked[m]["output"] == 4 * m, "a greedy step writes picks alone"


def test_two_emits_are_equal(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        emit_to(model, TextTarget(), tmp_path / name, EmitOptions())
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_refused_kernel_leaves_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="line 3: no"):
        emit_to(model, TextTarget(steps={"bin": failing}), tmp_path / "out", EmitOptions())
    assert list(tmp_path.iterdir()) == []


def test_a_refused_kernel_leaves_the_older_folder(model: Path, tmp_path: Path) -> None:
    emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    before = contents(tmp_path / "out")
    with pytest.raises(BuildError):
        emit_to(model, TextTarget(steps={"bin": failing}), tmp_path / "out", EmitOptions())
    assert contents(tmp_path / "out") == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_older_folder_is_replaced_whole(model: Path, tmp_path: Path) -> None:
    emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    emit_to(model, TextTarget(steps={}), tmp_path / "out", EmitOptions())
    assert not any(name.endswith(".up") for name in contents(tmp_path / "out"))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_missing_tool_is_one_line(model: Path, tmp_path: Path) -> None:
    target = TextTarget(steps={"bin": absent, "up": lambda s: s.text.upper().encode()})
    report: Any = emit_to(model, target, tmp_path / "out", EmitOptions())
    assert report["missing"] == {"bin": "xtool is not installed: apt install xtool"}
    names = set(contents(tmp_path / "out"))
    assert any(n.endswith(".up") for n in names)
    assert not any(n.endswith(".bin") for n in names)
    with pytest.raises(ToolMissingError, match="apt install xtool"):
        emit_to(model, target, tmp_path / "strict", EmitOptions(strict=True))
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda p: p.write_text("x"), "is a file"),
        (lambda p: (p.mkdir(), (p / "notes.txt").write_text("x")), "holds other files"),
        (lambda p: p.parent.rmdir(), "its folder does not exist"),
    ],
)
def test_what_may_not_be_replaced(made: Any, says: str, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "out"
    folder.parent.mkdir()
    made(folder)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=says):
        emit_to(model, TextTarget(), folder, EmitOptions())
    assert contents(tmp_path) == before


def test_the_folder_one_is_in_is_not_replaced(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell would stay in the folder that was, which is gone."""
    inner = tmp_path / "out" / KERNELS
    inner.mkdir(parents=True)
    for here in (inner.parent, inner):
        monkeypatch.chdir(here)
        with pytest.raises(InputError, match="is the folder this runs in"):
            emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    emit_to(model, TextTarget(), Path("..", "beside"), EmitOptions())
    assert (inner.parent / "beside" / REPORT).exists()


@pytest.mark.parametrize("name", ["out", f"out/{KERNELS}"])
def test_a_folder_that_cannot_be_listed_is_kept(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold anything; to rename it one need not read it."""
    emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    scandir, hidden = os.scandir, tmp_path / name

    def refused(path: Any) -> Any:
        if Path(path) == hidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    with monkeypatch.context() as denied:
        denied.setattr(os, "scandir", refused)
        with pytest.raises(PermissionError, match=re.escape(str(hidden))):
            emit_to(model, TextTarget(steps={}), tmp_path / "out", EmitOptions())
    assert list((tmp_path / "out" / KERNELS).glob("*.up"))


def test_a_mounted_disk_is_not_replaced(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an empty volume of a container is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(emit_folder.os.path, "ismount", lambda p: p == disk)
    with pytest.raises(InputError, match=r"disk: is where a disk is mounted; name a folder in it"):
        emit_to(model, TextTarget(), disk, EmitOptions())
    emit_to(model, TextTarget(), disk / "out", EmitOptions())


@pytest.mark.parametrize("name", ["mkdir", "write_bytes", "write_text", "rename"])
def test_a_full_disk_is_the_folders(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the folder that was asked for, and nothing is left."""
    work = getattr(Path, name)

    def full(self: Path, *rest: Any, **more: Any) -> Any:
        if UNFINISHED not in str(self) or self.name.startswith(".owner"):
            return work(self, *rest, **more)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, name, full)
    says = re.escape(f"{tmp_path / 'out'}: cannot be written (No space left on device)")
    with pytest.raises(InputError, match=says):
        emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    assert list(tmp_path.iterdir()) == []


FOREIGN = {
    "notes.txt": "notes.txt",
    f"{KERNELS}/mine.cu": f"{KERNELS}/mine.cu",
    "old": "old/a.txt",
}
"""What is named -> the user's file."""


@pytest.mark.parametrize("named", FOREIGN)
def test_a_folder_with_a_users_file_is_kept(
    named: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    mine = tmp_path / "out" / FOREIGN[named]
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    before = contents(tmp_path)
    words = ["emit", str(model), "--target", "vulkan:lavapipe", "-o", str(tmp_path / "out")]
    assert run(words) == 2
    says = f"holds other files ({named}); name a new folder with -o\n"
    assert capsys.readouterr().err.endswith(says)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{}", '{"results": [1]}', '{"kernels": [3], "schema": 1}'])
def test_a_report_of_something_else_is_kept(text: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / REPORT).write_text(text)
    with pytest.raises(InputError, match="holds other files"):
        emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    assert contents(tmp_path) == {f"out/{REPORT}": text.encode()}


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_while_folders_change_places_loses_neither(
    error: type[BaseException],
    step: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right after the first rename, as a signal comes, and in the second."""
    emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
    before = contents(tmp_path)
    rename, calls = Path.rename, []

    def interrupted(self: Path, to: Path) -> Path:
        if to.name == OWNER:  # of the folder that is being written
            return rename(self, to)
        calls.append(to)
        if len(calls) != step + 1:
            return rename(self, to)
        if step == 0:
            rename(self, to)
        raise error

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises((error, InputError)):
        emit_to(model, TextTarget(steps={}), tmp_path / "out", EmitOptions())
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("before", "there"), [(0, False), (0, True), (1, True)])
def test_the_last_of_two_emits_stays(
    before: int, there: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one publishes, or has put the older folder aside, before each of our renames."""
    out = tmp_path / "out"
    if there:
        emit_to(model, TextTarget(steps={}), out, EmitOptions())
    rename, calls = Path.rename, []

    def late(self: Path, to: Path) -> Path:
        if to.name == OWNER or len(calls) > before:
            return rename(self, to)
        calls.append(to)
        if len(calls) == before + 1:
            if out.exists():
                rename(out, tmp_path / "aside")
            else:
                emit_to(model, TextTarget(steps={}), out, EmitOptions())
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", late)
    emit_to(model, TextTarget(), out, EmitOptions())
    assert len(calls) == before + 1
    assert {p.name for p in tmp_path.iterdir()} <= {"out", "aside"}
    assert list((out / KERNELS).glob("*.up"))


EMIT = """
import sys
from pathlib import Path
from test_emit import TextTarget
from speccc.emit import EmitOptions, emit_to
def wait(source):
    print("building", flush=True)
    sys.stdin.read()
    return b""
emit_to(Path(sys.argv[1]), TextTarget(steps={"up": wait}), Path(sys.argv[2]), EmitOptions())
"""


def test_what_a_killed_emit_left_goes_with_the_next(model: Path, tmp_path: Path) -> None:
    """But not what a live one is writing."""
    scratch._sweep.cache_clear()
    command = [sys.executable, "-c", EMIT, str(model), str(tmp_path / "out")]
    with (
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parent) as killed,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parent) as live,
    ):
        for process in (killed, live):
            assert process.stdout is not None
            assert process.stdout.readline() == b"building\n"
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 2
        emit_to(model, TextTarget(), tmp_path / "out", EmitOptions())
        assert sorted(p.name[:12] for p in tmp_path.iterdir()) == [UNFINISHED[:12], "out"]
        live.communicate()
    assert live.returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_model_the_target_cannot_serve(model: Path, tmp_path: Path) -> None:
    target = TextTarget(why="has no shared memory")
    with pytest.raises(UnsupportedError, match="vulkan:lavapipe: has no shared memory"):
        emit_to(model, target, tmp_path / "out", EmitOptions())
    with pytest.raises(UnsupportedError, match=r"--kv q9: choose one of f16, i8, f32"):
        emit_to(model, TextTarget(), tmp_path / "out", EmitOptions(kv="q9"))
    with pytest.raises(SpecccError, match="two sources are called"):
        emit_to(model, TextTarget(copies=2), tmp_path / "out", EmitOptions())
    assert list(tmp_path.iterdir()) == []


def test_vulkan_from_the_command_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("vulkan")
    words = ["emit", str(model), "--target", "vulkan:lavapipe", "-o", str(tmp_path / "out")]
    assert run([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    if report["missing"]:
        pytest.skip(report["missing"]["spv"])
    assert report["instructions"]["OpCooperativeMatrixMulAddKHR"] > 0
    assert all(k["shared_bytes"] <= 32768 for k in report["kernels"])
    assert report["profile"]["subgroup"]["value"] == 8
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "ffn_down" in shown
    most = report["launches_per_step"]
    assert f"launches per step: {most - LAYERS} to {most}" in shown  # attention's merges


@pytest.mark.parametrize("backend", registry.backends())
def test_every_target_renders_the_same_text_twice(backend: str, model: Path) -> None:
    from speccc.emit import read_model
    from speccc.targets.launch_plan import document

    made = [read_model(model, EmitOptions(), lambda *at: None) for _ in range(2)]
    target = registry.target(backend)
    a, b = (target.render(f.plan, f.arena, f.bounds) for f in made)
    assert a.sources == b.sources
    assert json.dumps(document(a)) == json.dumps(document(b))


def test_the_command_says_what_is_wrong(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "no target given": ["emit", str(model)],
        "did you mean vulkan:rdna3": ["emit", str(model), "--target", "vulkan:rdna33"],
        "no model given": ["emit", "--target", "vulkan"],
        "no such file": ["emit", "absent.gguf", "--target", "vulkan"],
        "-o is empty; name a folder": ["emit", str(model), "--target", "vulkan", "-o", ""],
        "File name too long": ["emit", str(model), "--target", "vulkan", "-o", "x" * 300],
    }
    for says, words in cases.items():
        assert run(words) == 2, says
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.err.count("\n") == 1
    assert run(["emit", "--help"]) == 0
    assert "speccc emit model.gguf --target cuda:sm_90 -o kernels/" in capsys.readouterr().out


def test_the_list_of_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["emit", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in listed] == list(registry.target_names())
    assert run(["emit", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(p["name"] in shown for p in listed)
