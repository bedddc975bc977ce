"""GPU targets from the command line: artifacts made without a device, and what runs where one is.

The devices are vendors' bindings on host memory, where a kernel's code is its name. What they print
is what the CPU prints. (SYCL's driver for the CPU, which is real: `test_sycl_recorder`.)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emulation.require import require
from gpu_fakes import Host
from models import Tiny, tiny_llama
from test_drivers import FAKES, installed
from test_emit import TextTarget

from speccc import device_here, device_step
from speccc.api import load
from speccc.cli import run
from speccc.emit import EmitOptions, read_model
from speccc.errors import InputError, UnsupportedError
from speccc.ir.plan import phases
from speccc.runtime.artifact_file import read_entries, write_entries
from speccc.runtime.devices import cuda
from speccc.runtime.devices.drivers import binary_ending
from speccc.targets.base import ToolMissingError
from speccc.targets.devices import profile

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("shared_kernels")
PROMPT = "the the the in the"
TINY = Tiny(seed=2, hidden=32, heads=2, kv_heads=1, ffn=64)
NAMES = {"cuda": "cuda:sm_90", "rocm": "rocm:gfx1100", "metal": "metal:m4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return tiny_llama(folder, fmt="q4_1", name="tiny.gguf", tiny=TINY)


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(folder / "cache"))


@dataclass
class Shell:
    """Command lines and what they print."""

    capsys: Capture

    def text(self, *words: str) -> dict[str, Any]:
        """The document of a `run`."""
        self.capsys.readouterr()
        code = run(["run", *words, "-p", PROMPT, "-n", "12", "-c", "64", "--json"])
        captured = self.capsys.readouterr()
        assert code == 0, captured.err
        found: dict[str, Any] = json.loads(captured.out)
        return found

    def refusal(self, *words: str) -> str:
        """The one line of a command that ends with 2."""
        self.capsys.readouterr()
        assert run(list(words)) == 2
        said = self.capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        return said


@pytest.fixture
def shell(capsys: Capture) -> Shell:
    return Shell(capsys)


@pytest.fixture
def on_host(model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Host]:
    """Makes a backend's target build names, and its bindings run the programs of these names."""
    kernels = phases(read_model(model, EmitOptions(), lambda *at: None, "cuda").plan.body)

    def install(backend: str) -> Host:
        steps = {
            binary_ending(backend): lambda s: s.name.encode(),
            "json": lambda s: b'{"shared_bytes": 60000}',
        }
        made = TextTarget(profile(NAMES[backend]), steps)
        monkeypatch.setattr(device_here, "device_target", lambda name: made)
        monkeypatch.setattr(device_step, "measured_here", lambda *given: None)  # kernels in NumPy
        host = Host({k.name: k for k in kernels})
        installed(backend, FAKES[backend][1](host), monkeypatch)
        return host

    return install


@pytest.mark.parametrize("backend", NAMES)
def test_an_artifact_says_what_the_cpu_says(
    backend: str, model: Path, shell: Shell, tmp_path: Path, on_host: Callable[[str], Host]
) -> None:
    theirs = shell.text("-m", str(model))  # TVM would take the fake for the package
    host = on_host(backend)
    artifact = str(tmp_path / "m.speccc")
    words = ["compile", str(model), "--target", NAMES[backend], "-o", artifact]
    assert run(words) == 0
    host.launched.clear()
    ours, plain = shell.text("-m", artifact), shell.text("-m", artifact, "--spec-type", "none")
    assert ours["tokens"] == plain["tokens"] == theirs["tokens"]
    assert (ours["steps"], theirs["steps"]) == ("recorded", "compiled")
    # A persistent kernel is all; others have nothing to merge so early in a text.
    assert {name for name, _, _ in host.launched} == set(host.kernels) - {"attn_merge"}
    assert theirs["launches_per_step"] == [1, 1]
    fewest, most = ours["launches_per_step"]
    assert 1 <= fewest <= most < len(host.launched)
    assert run(["inspect", artifact]) == 0


def test_that_nothing_is_kept_is_said_once(
    model: Path, tmp_path: Path, on_host: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    """Of a step with many kernels, each of several stages."""
    on_host("cuda")
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(model))
    artifact = str(tmp_path / "m.speccc")
    assert run(["compile", str(model), "--target", NAMES["cuda"], "-o", artifact]) == 0
    assert capsys.readouterr().err.count("kernels are not kept") == 1


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Entries changed by one who can write hashes."""
    kept = read_entries(path)
    manifest = {k: v for k, v in kept.manifest.items() if k not in ("schema", "entries")}
    data = dict(kept.data)
    change(data)
    write_entries(path, manifest, data)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update({"kernels/pick.cubin": b"other"}), "does not belong"),
        (lambda d: d.update({"kernels/pick.json": b'{"shared_bytes": 8}'}), "does not belong"),
        (lambda d: d.pop("kernels/pick.cubin"), "kernel pick has no cubin file"),
        (lambda d: d.pop("launch-plan.json"), "launch-plan.json is missing"),
        (lambda d: d.update({"launch-plan.json": b"{"}), "launch-plan.json is not JSON"),
        (lambda d: d.pop("weights"), "entry weights is missing"),
    ],
)
def test_code_that_is_not_the_steps_is_refused(
    change: Callable[[dict[str, Any]], object],
    says: str,
    model: Path,
    tmp_path: Path,
    on_host: Callable[[str], Host],
) -> None:
    on_host("cuda")
    artifact = tmp_path / "m.speccc"
    assert run(["compile", str(model), "--target", NAMES["cuda"], "-o", str(artifact)]) == 0
    load(artifact)
    changed(artifact, change)
    with pytest.raises((InputError, UnsupportedError), match=says):
        load(artifact)


@pytest.mark.parametrize(
    ("name", "says"),
    [("cuda", "NVIDIA's driver"), ("rocm", "install ROCm"), ("metal", "on a Mac"),
     ("sycl:bmg", "--target sycl:cpu needs no GPU")],
)  # fmt: skip
def test_without_hardware_one_line_says_what_is_missing(
    name: str, says: str, model: Path, shell: Shell
) -> None:
    """Before anything is compiled for it."""
    if name.startswith("sycl"):
        require("sycl")
    assert says in shell.refusal("run", "-m", str(model), "--target", name, "-p", PROMPT)


def test_a_stage_without_its_tool_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def absent(source: object) -> bytes:
        raise ToolMissingError("xtool is not installed: apt install xtool")

    code = {"cubin": lambda s: b"x", "sass": absent}
    monkeypatch.setattr(
        device_here, "device_target", lambda name: TextTarget(profile("cuda:sm_90"), code)
    )
    words = ("compile", str(model), "--target", "cuda", "-o", str(tmp_path / "m.speccc"))
    assert run(words) == 0, "only what a driver loads is needed"
    code["cubin"], code["sass"] = absent, code["cubin"]
    monkeypatch.setattr(TextTarget, "fingerprint", lambda self: "text 2")  # it is not kept
    assert "apt install xtool" in shell.refusal(*words)


def test_a_bare_backend_is_the_device_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from speccc.device_here import device_target, profile_of_device

    assert device_target("cuda").name == "cuda:sm_90", "the default, where there is no device"
    expected = {"cuda": "cuda:rtx4090", "rocm": "rocm:rx7900xtx", "metal": "metal:m4pro"}
    for backend in FAKES:
        installed(backend, FAKES[backend][1](Host({})), monkeypatch)
    assert {b: device_target(b).name for b in FAKES} == expected
    assert profile_of_device("cuda", "NVIDIA Nameless", "sm_86") == "cuda:sm_86"
    with pytest.raises(UnsupportedError, match="is a device of no profile: choose one of cuda:"):
        profile_of_device("cuda", "NVIDIA Nameless", "sm_52")


def test_a_session_that_cannot_be_made_gives_the_device_back(
    model: Path, shell: Shell, tmp_path: Path, on_host: Callable[[str], Host]
) -> None:
    host, artifact = on_host("cuda"), str(tmp_path / "m.speccc")
    assert run(["compile", str(model), "--target", NAMES["cuda"], "-o", artifact]) == 0
    opened: list[Any] = []
    real = cuda.CudaDriver.load

    def failing(self: Any, code: Any) -> Any:
        opened.append(self)
        if len(opened) > 3:
            raise UnsupportedError("no")
        return real(self, code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda.CudaDriver, "load", failing)
        assert "no" in shell.refusal("run", "-m", artifact, "-p", PROMPT)
    assert host.calls[-1] == "cuDevicePrimaryCtxRelease"
    assert host.memory == {}
