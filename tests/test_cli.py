"""The command line's manners: help, exit codes, one-line errors, interrupts."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from emulation.require import require
from models import tiny_llama

from speccc.cli import group, run
from speccc.cli.group import COMMANDS
from speccc.errors import InputError, SpecccError
from speccc.rare_collections import YOUNG, rare_collections
from speccc.scratch import OWNER, Scratch

Capture = pytest.CaptureFixture[str]

RAISED = {
    "input": (InputError("is bad; mend it", where="f"), 2, "error: f: is bad; mend it"),
    "ours": (SpecccError("broke"), 1, "error: broke"),
    "two lines": (SpecccError("broke\n  twice"), 1, "error: broke twice"),
    "internal": (ZeroDivisionError("by zero"), 1, "error: internal: ZeroDivisionError: by zero"),
    "missing": (FileNotFoundError(2, "No such file", "f"), 2, "error: f: No such file"),
    "disk": (OSError(28, "No space left on device", "f"), 1, "error: f: No space left"),
    "memory": (MemoryError(), 1, "error: out of memory"),
    "usage": (click.UsageError("what"), 2, "error: what"),
}


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def stub(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(group.cli, "main", stub)


@pytest.mark.parametrize("case", RAISED)
def test_an_exception_is_one_line_and_a_code(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    error, code, line = RAISED[case]
    monkeypatch.delenv("SPECCC_DEBUG", raising=False)
    raising(monkeypatch, error)
    assert run([]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


def test_the_traceback_is_there_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("SPECCC_DEBUG", "1")
    raising(monkeypatch, ZeroDivisionError("by zero"))
    assert run([]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_and_a_closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert run([]) == 130
    # As a process: pytest's own stdout must not be pointed elsewhere.
    code = (
        "import sys; from speccc.cli import group, run\n"
        "group.cli.main = lambda *a, **k: print('x' * 100000)\n"
        "sys.exit(run([]))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_while_a_command_waits() -> None:
    command = [sys.executable, "-m", "speccc", "run", "-m", sys.executable]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}

    def listen() -> None:
        """What a shell starts in the background is told to ignore interrupts, and hands that on."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(command, **pipes, text=True, preexec_fn=listen) as process:
        _wait_for_reader(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "\ninterrupted\n")


ENDS = {"SIGTERM": (143, b"\nterminated\n"), "SIGHUP": (129, b"\nhung up\n")}


HELD = """
import os, time
from speccc import scratch
from speccc.cli import group
enter = scratch.Scratch.__enter__
def held(self):
    temporary = str(self.path.parent) == os.environ["TMPDIR"]  # the cache's file has one too
    while temporary and not os.path.exists(os.environ["GO_ON"]):
        time.sleep(0.01)
    return enter(self)
scratch.Scratch.__enter__ = held
group.main()
"""


@contextmanager
def building(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """A compile held while it has a temporary folder, where that is, and a file to let it go on."""
    model = tiny_llama(tmp_path)
    scratch, go = tmp_path / "tmp", tmp_path / "go"
    scratch.mkdir()
    command = [sys.executable, "-c", HELD, "compile", str(model), "--tune", "0"]
    command += ["-o", str(tmp_path / "m.speccc")]
    changed = {"TMPDIR": scratch, "SPECCC_CACHE_DIR": tmp_path / "cache", "GO_ON": go}
    env = {**os.environ, **{name: str(value) for name, value in changed.items()}}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        while not any(scratch.glob(f"speccc-*/{OWNER}")):
            assert process.poll() is None
            time.sleep(0.01)
        yield process, scratch, go
        process.kill()


@pytest.mark.parametrize("name", ENDS)
def test_an_ended_compile_leaves_no_folder(name: str, tmp_path: Path) -> None:
    with building(tmp_path) as (process, scratch, go):
        process.send_signal(signal.Signals[name])
        go.touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (ENDS[name][0], b"", ENDS[name][1])
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "m.speccc").exists()


def test_a_killed_compile_leaves_folders_for_the_next_to_remove(tmp_path: Path) -> None:
    with building(tmp_path) as (process, scratch, _):
        process.kill()
        process.wait()
        assert list(scratch.iterdir()) != []
        with Scratch(base=scratch) as folder:
            assert list(scratch.iterdir()) == [folder]


@pytest.mark.parametrize("name", ENDS)
def test_an_ignored_signal_stays_ignored(name: str) -> None:
    code = (
        "import os, signal, sys; from speccc.cli import group\n"
        f"group.cli.main = lambda *a, **k: os.kill(os.getpid(), signal.{name})\n"
        f"signal.signal(signal.{name}, signal.{{}})\n"
        "group.main()"
    )
    for handler, expected in {"SIG_IGN": 0, "SIG_DFL": ENDS[name][0]}.items():
        done = subprocess.run([sys.executable, "-c", code.format(handler)], timeout=60)
        assert done.returncode == expected


def test_a_command_leaves_its_objects_to_the_end_of_the_process() -> None:
    code = (
        "import atexit, gc; from speccc.cli import group\n"
        "group.cli.main = lambda *a, **k: 3\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"
        "group.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (3, b"True\n")


CLOSED = """
import os, sys
for number in {closed}:
    os.close(number)
os.execv(sys.executable, [sys.executable, "-c", {code!r}])
"""
CALLED = """
import os, sys
from speccc.cli import group
open_by_then = []
def called(*args, **more):
    open_by_then.extend(os.readlink(f"/proc/self/fd/{n}") == os.devnull for n in (0, 1, 2))
    print(sys.stdin.read(), "out")
    print("err", file=sys.stderr)
    return 10 + sum(open_by_then)
group.cli.main = called
group.main()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at open files by /proc")
@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed_are_the_null_device(closed: tuple[int, ...]) -> None:
    """As a daemon's may be; a file that is written must not get the number of stderr."""
    command = [sys.executable, "-c", CLOSED.format(closed=closed, code=CALLED)]
    done = subprocess.run(command, input=b"in", capture_output=True, timeout=60)
    assert done.returncode == 10 + len(closed)
    out = b"" if 0 in closed else b"in"
    assert done.stdout == (b"" if 1 in closed else out + b" out\n")
    assert done.stderr == (b"" if 2 in closed else b"err\n")


def test_a_command_that_builds_with_triton_says_nothing_of_leaks(tmp_path: Path) -> None:
    require("triton")
    model = tiny_llama(tmp_path, fmt="q4_1")
    words = ["emit", str(model), "--target", "cuda:sm_90", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "speccc", *words], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_collections_are_rare_for_a_while() -> None:
    def failing() -> None:
        with rare_collections():
            assert gc.isenabled()
            assert gc.get_threshold() == (YOUNG, *before[1:])
            raise ZeroDivisionError

    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError):
        failing()
    assert gc.get_threshold() == before


def _wait_for_reader(pid: int) -> None:
    """Until the process sleeps in a read of its standard input, and not of another pipe."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            waits = "pipe_read" in Path(f"/proc/{pid}/wchan").read_text()
            call = Path(f"/proc/{pid}/syscall").read_text().split()
        except OSError:
            pytest.skip("needs /proc to see that the command waits")
        if waits and len(call) > 1 and call[1] == "0x0":  # the descriptor
            return
        time.sleep(0.05)
    pytest.skip("the kernel does not say what the command waits for")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, capsys: Capture) -> None:
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"speccc {command}" in text.split("Examples:")[1]


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("speccc 0.")


def test_doctor(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is True
    names = {check["name"] for check in document["checks"]}
    assert {"python", "cpu", "instruction sets", "cache", "apache-tvm"} <= names
    assert run(["doctor"]) == 0
    assert "instruction sets" in capsys.readouterr().out


def test_doctor_says_what_is_wrong(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "file"))
    assert run(["doctor", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["healthy"] is False
    assert "SPECCC_CACHE_DIR" in captured.err
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert run(["doctor"]) == 2
    assert "install gcc, or set CC" in capsys.readouterr().err


BAD = {
    "no model": (["inspect"], "no model given"),
    "two models": (["inspect", "a", "-m", "b"], "two models"),
    "no file": (["inspect", "/nowhere/model.gguf"], "/nowhere/model.gguf: no such file"),
    "two prompts": (["run", "{file}", "-p", "a", "-f", "b"], "give one prompt"),
    "chat and raw": (["run", "{file}", "-p", "a", "--raw", "-sys", "b"], "-sys"),
    "no prompt file": (["run", "{file}", "-f", "/nowhere"], "/nowhere: No such file"),
    "not a model": (["run", "{file}", "-p", "a"], "{file}: "),
    "not utf-8": (["run", "{file}", "-f", "{file}"], "{file}: is not UTF-8 at byte 0"),
    "no folder": (["compile", "{file}", "-o", "/nowhere/x"], "/nowhere/x: its folder"),
    "onto itself": (["compile", "{file}", "-o", "{file}"], "is the model itself"),
    "onto a folder": (["compile", "{file}", "-o", "/"], "is a folder"),
    "bad isa": (["compile", "{file}", "--isa", "sse"], "'sse' is not one of"),
    "bad count": (["run", "{file}", "-p", "a", "-n", "x"], "'x' is not a valid integer"),
    "bad target": (["compile", "{file}", "--target", "toaster", "-o", "{file}.o"], "for cpu, cuda"),
    "bad target to run": (["run", "{file}", "-p", "a", "--target", "toaster"], "for cpu, cuda"),
    "cpu's isa": (["run", "{file}", "-p", "a", "--target", "cpu:avx2"], "--target cpu --isa avx2"),
    "isa as target": (["compile", "{file}", "--target", "cpu:avx2"], "--target cpu --isa avx2"),
    "emit for the cpu": (["emit", "{file}", "--target", "cpu"], "emit is for GPUs"),
    "emit for an isa": (["emit", "{file}", "--target", "cpu:avx2"], "emit is for GPUs"),
    "no budget": (["tune", "{file}", "--budget", "nan"], "nan is not a finite number"),
    "endless budget": (["tune", "{file}", "--budget", "inf"], "inf is not a finite number"),
    "no time": (["compile", "{file}", "--tune", "nan"], "nan is not a finite number"),
    "no temperature": (["run", "{file}", "-p", "a", "--temp", "nan"], "nan is not a finite number"),
    "no share": (["run", "{file}", "-p", "a", "--min-p", "nan"], "nan is not a finite number"),
    "bench's target": (["bench", "{file}", "--target", "cuda"], "compile, run and emit take it"),
    "tune's target": (["tune", "{file}", "--target", "cuda"], "compile, run and emit take it"),
    "less than none": (["compile", "{file}", "--tune", "-inf"], "is not in the range x>=0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(
    case: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "junk.gguf"
    file.write_bytes(b"\xff\xfejunk")
    args, text = BAD[case]
    assert run([arg.replace("{file}", str(file)) for arg in args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert text.replace("{file}", str(file)) in captured.err
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept == [file]  # nothing half-written is left behind


@pytest.mark.parametrize("words", ["run -p a", "compile", "tune", "inspect", "bench"])
def test_a_device_is_no_model(words: str, capsys: Capture) -> None:
    assert run([*words.split(), "-m", "/dev/null"]) == 2
    assert "/dev/null: is no model file but a device or a pipe" in capsys.readouterr().err


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "speccc", "run", "-p", "a", "-m", str(tmp_path / "pipe")]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    assert b"is no model file but a device or a pipe" in done.stderr


@pytest.mark.parametrize("words", ["compile", "tune", "emit --target vulkan:lavapipe"])
def test_an_artifact_is_compiled_already(
    words: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.speccc").write_bytes(b"PK\x03\x04")
    assert run([*words.split(), "m.speccc"]) == 2
    says = "m.speccc: is compiled already; use it with `speccc run`, or name the model file\n"
    assert capsys.readouterr().err == f"error: {says}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("snapshot/tiny-1.5b.gguf", "tiny-1.5b"),
        ("linked-2.5b", "linked-2.5b"),
        (".", "{here}"),
        ("linked-2.5b/..", "{here}"),
        ("folder-2.5b", "folder-2.5b"),
    ],
)
def test_outputs_have_the_name_that_was_given(
    given: str, expected: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of downloads keeps files under hashes and links names to them.

    What may not be replaced tells which name is taken.
    """
    monkeypatch.chdir(tmp_path)
    for folder in ("blobs", "snapshot", "folder-2.5b"):
        Path(folder).mkdir()
    Path("blobs/0e3f").touch()
    Path("snapshot/tiny-1.5b.gguf").symlink_to("../blobs/0e3f")
    Path("linked-2.5b").symlink_to("folder-2.5b")
    name = expected.format(here=tmp_path.name)
    Path(f"{name}.speccc").mkdir()
    Path(f"{name}-vulkan-lavapipe").touch()
    assert run(["compile", given]) == 2
    assert f"error: {name}.speccc: is a folder" in capsys.readouterr().err
    assert run(["emit", given, "--target", "vulkan:lavapipe"]) == 2
    assert f"error: {name}-vulkan-lavapipe: is a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--against", "llama.cpp"], "llama.cpp cannot read"), (["--quality"], "--quality cannot")],
)
def test_bench_refuses_an_artifact_where_a_model_is_read(
    flags: list[str], said: str, capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "m.speccc"
    file.write_bytes(b"PK\x03\x04")
    assert run(["bench", str(file), *flags]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "give the GGUF file" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--widths", "0-3"], "'0-3' is not within 1 to 64"),
        (["--context-lengths", "x"], "'x' is no number or range"),
        (["--plot", "cost.gif"], "name a .png, .svg or .pdf file"),
        (["--text", "absent.txt"], "absent.txt"),
    ],
)
def test_bench_refuses_before_it_measures(
    capsys: Capture, tmp_path: Path, flags: list[str], said: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert run(["bench", str(tmp_path / "m.gguf"), *flags]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_closed_pipe_is_nobodys_fault(tmp_path: Path) -> None:
    """A listing whose reader has gone ends quietly, with the code of a closed pipe."""
    model = tiny_llama(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "speccc", "inspect", str(model), "--tensors"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
