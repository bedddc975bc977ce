"""SYCL text -> SPIR-V -> code of a Xe GPU, with the compilers that are on this machine.

SPIR-V comes from the SYCL compiler that Intel ships as a library in the wheel `intel-sycl-rt`, run
in a process of its own; without that wheel, from `icpx` on PATH. `ocloc` makes Xe code of it and
shows its instructions; it may live in another root and be started through that root's loader.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from speccc.scratch import Scratch
from speccc.system_root import xe_root
from speccc.targets.build_error import BuildError

WHEEL, VERSION = "intel-sycl-rt", "2026.2."
"""The library's structures are known for this version only."""
LIBRARY = "libsycl-jit.so"
JIT = Path(__file__).with_name("sycl") / "jit.py"
TIMEOUT_S = 120.0
# Products and sums are rounded one by one; the pragma in the text says so too.
FLAGS = ("-ffp-contract=off",)
PRECISE = "-cl-fp32-correctly-rounded-divide-sqrt"
"""What the device's compiler must be told: quotients and roots are part of the bits."""

INSTALL_OCLOC = "apt install intel-ocloc (Debian sid, Ubuntu 24.10), or run .ci/xe-root"

Command = tuple[str, ...]


class Form(Enum):
    """How a text's matrices are compiled; the value is that of the macro SPECCC_JOINT_MATRIX."""

    PORTABLE = 0  # sub-group broadcasts, on any device
    JOINT = 1  # the matrix engine's own

    @property
    def flags(self) -> tuple[str, ...]:
        """The macro, and what this form is compiled with."""
        # Unrolled, the loops of the portable form take a CPU's driver four times as long to build.
        unroll = ("-fno-unroll-loops",) if self is Form.PORTABLE else ()
        return (f"-DSPECCC_JOINT_MATRIX={self.value}", *unroll)


@dataclass(frozen=True, slots=True)
class SyclCompiler:
    """A command that reads a text on stdin; `to_file` says that it writes to a file named last."""

    name: str
    version: str
    command: Command
    flags: tuple[str, ...]
    to_file: bool


@dataclass(frozen=True, slots=True)
class XeCode:
    """A device binary, its instructions as text, and what the compiler notes of the kernel."""

    binary: bytes
    text: str
    notes: str

    def facts(self) -> Mapping[str, int | None]:
        """Registers, bytes spilled and all bytes beside registers of a lane; local memory.

        The notes count a hardware thread's bytes; its registers hold 32 bits of each lane.
        """
        lanes = self._note("simd_size") or 1
        spills, private = (-(-self._note(n) // lanes) for n in ("spill_size", "private_size"))
        return {
            "registers": self._note("grf_count") or None,
            "spills": spills,
            "shared_bytes": self._note("slm_size"),
            "stack_bytes": spills + private,
        }

    def _note(self, name: str) -> int:
        """A number of .ze_info, which leaves out what is zero."""
        found = re.search(rf"(?m)^\s*{name}:\s*(\d+)", self.notes)
        return int(found[1]) if found else 0


@cache
def find_sycl_compiler() -> SyclCompiler | None:
    """The wheel's compiler when its version is the known one, else icpx on PATH, else None."""
    library = _jit_library()
    if library is not None:
        version = importlib.metadata.version(WHEEL)
        command = (sys.executable, "-I", str(JIT), str(library))
        return SyclCompiler(LIBRARY, version, command, FLAGS, to_file=False)
    icpx = shutil.which("icpx")
    return None if icpx is None else icpx_compiler(icpx)


def icpx_compiler(path: str) -> SyclCompiler:
    """oneAPI's driver; its default is fast arithmetic, so it is told to be precise."""
    head = _run((path, "--version"), b"", path).stdout.decode(errors="replace").splitlines()
    device = ("-fsycl", "-fsycl-device-only", "-fsycl-device-obj=spirv", "-O2")
    flags = (*device, "-fp-model=precise", *FLAGS, "-x", "c++", "-", "-o")
    return SyclCompiler("icpx", head[0] if head else "unknown", (path,), flags, to_file=True)


def _jit_library() -> Path | None:
    try:
        found = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    if not found.version.startswith(VERSION):
        return None
    paths = (Path(str(f.locate())) for f in found.files or () if f.name == LIBRARY)
    return next((p.resolve() for p in paths if p.exists()), None)


def compile_sycl(text: str, compiler: SyclCompiler, form: Form, *, name: str = "kernel") -> bytes:
    """SPIR-V of one kernel's text. BuildError with the compiler's words when it is refused."""
    if not compiler.to_file:
        words = (*compiler.command, f"{name}.cpp", *form.flags, *compiler.flags)
        return _checked(_run(words, text.encode(), name), name).stdout
    with Scratch() as folder:
        out = folder / "out.spv"
        words = (*compiler.command, *form.flags, *compiler.flags, str(out))
        _checked(_run(words, text.encode(), name), name)
        return out.read_bytes()


def find_ocloc() -> Command | None:
    """How to start Intel's offline device compiler: of PATH, else of the root for it, else None."""
    here = shutil.which("ocloc")
    if here is not None:
        return (here,)
    root = xe_root()
    program = None if root is None else root.program("ocloc")
    return None if root is None or program is None else root.command(program)


def compile_xe(spirv: bytes, device: str, ocloc: Command, *, name: str = "kernel") -> XeCode:
    """Code of `device` (as ocloc calls it: "bmg-g31", "pvc"). BuildError when it is refused.

    With 128 registers, the usual number: 256 halve the threads of a core, and none of ours spills.
    """
    with Scratch() as folder:
        source, dump, binary = (folder / name for name in ("k.spv", "dump", "k.bin"))
        source.write_bytes(spirv)
        given = ("-file", str(source), "-device", device, "-spirv_input", "-options", PRECISE)
        placed = ("-out_dir", str(folder), "-output", binary.stem, "-output_no_suffix")
        done = _checked(_run((*ocloc, "compile", *given, *placed), b"", name), name)
        if not binary.exists():
            raise BuildError(_words(done), where=name)
        shown = (*ocloc, "disasm", "-file", str(binary), "-device", device, "-dump", str(dump))
        _checked(_run(shown, b"", name), name)
        texts = "".join(t.read_text(errors="replace") for t in sorted(dump.glob(".text.*.asm")))
        notes = (dump / ".ze_info").read_text(errors="replace")
        return XeCode(binary.read_bytes(), texts, notes)


@cache
def ocloc_version(ocloc: Command) -> str:
    """What ocloc says of itself."""
    done = _run((*ocloc, "--version"), b"", ocloc[-1])
    return done.stdout.decode(errors="replace").strip() or "unknown"


def _checked(
    done: subprocess.CompletedProcess[bytes], name: str
) -> subprocess.CompletedProcess[bytes]:
    if done.returncode != 0:
        raise BuildError(_words(done), where=name)
    return done


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    """What the compiler said, without its notes on each macro's expansion."""
    log = (done.stderr or done.stdout).decode(errors="replace").strip()
    return log or f"ended with status {done.returncode} and without a word"


def _run(command: Command, data: bytes, name: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, input=data, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"no answer in {TIMEOUT_S:.0f} s from {command[0]}", where=name) from None
    except OSError as error:
        raise BuildError(f"cannot be started: {error.strerror}", where=command[0]) from None
