"""GLSL compute text -> SPIR-V: glslang compiles, spirv-val checks, spirv-dis shows.

The three tools are external programs. A command is a prefix of words rather than a path, since
a tool may live in another root and be started through that root's dynamic loader.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from speccc.scratch import Scratch
from speccc.system_root import vulkan_root
from speccc.targets.build_error import BuildError
from speccc.targets.spirv_memory import ordered_by_barriers

TARGET_ENV = "vulkan1.3"
# What the tests use; 12.0 (Debian 12) does not know GL_KHR_cooperative_matrix.
OLDEST_GLSLANG = (15, 1)
TIMEOUT_S = 60.0

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GlslTools:
    """How to start the three programs."""

    glslang: Command
    spirv_val: Command
    spirv_dis: Command


def find_glsl_tools() -> GlslTools | None:
    """The tools of the Vulkan root if there is one, else those on PATH.

    None when one is missing or glslang is older than we can use.
    """
    root = vulkan_root()
    if root is not None:
        programs = root.path / "usr/bin"
        names = ("glslang", "spirv-val", "spirv-dis")
        return GlslTools(*(root.command(programs / name) for name in names))
    glslang = shutil.which("glslang") or shutil.which("glslangValidator")
    val, dis = shutil.which("spirv-val"), shutil.which("spirv-dis")
    if not glslang or not val or not dis:
        return None
    tools = GlslTools((glslang,), (val,), (dis,))
    return tools if glslang_version(tools) >= OLDEST_GLSLANG else None


def glslang_version(tools: GlslTools) -> tuple[int, int]:
    """(major, minor) of glslang. BuildError when it does not say."""
    text = _run((*tools.glslang, "--version"), b"").stdout.decode(errors="replace")
    found = re.search(r"Glslang Version: \d+:(\d+)\.(\d+)", text)
    if not found:
        raise BuildError("does not print its version", where=tools.glslang[-1])
    return int(found[1]), int(found[2])


def compile_glsl(
    text: str, tools: GlslTools, *, name: str = "kernel", stage: str = "comp"
) -> bytes:
    """Validated SPIR-V of one shader. BuildError shows each refused line with its number."""
    with Scratch() as folder:
        out = folder / "out.spv"
        # --stdin comes first: 15.1 prints its usage when -S stands before it.
        words = (*tools.glslang, "--stdin", "-V", "--target-env", TARGET_ENV, "-S", stage)
        done = _run((*words, "-o", str(out)), text.encode())
        if done.returncode != 0 or not out.exists():
            log = (done.stdout + done.stderr).decode(errors="replace")
            raise BuildError(_quote_lines(log, text), where=name)
        spirv = ordered_by_barriers(out.read_bytes())
    validate_spirv(spirv, tools, name=name)
    return spirv


def validate_spirv(spirv: bytes, tools: GlslTools, *, name: str = "kernel") -> None:
    """BuildError unless spirv-val accepts the module."""
    done = _run((*tools.spirv_val, "--target-env", TARGET_ENV, "-"), spirv)
    if done.returncode != 0:
        raise BuildError((done.stdout + done.stderr).decode(errors="replace").strip(), where=name)


def disassemble_spirv(spirv: bytes, tools: GlslTools) -> str:
    """The module as text. BuildError when it is none."""
    done = _run((*tools.spirv_dis, "--no-color", "-"), spirv)
    if done.returncode != 0:
        raise BuildError(done.stderr.decode(errors="replace").strip(), where="spirv-dis")
    return done.stdout.decode()


def _run(command: Command, data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, input=data, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"no answer in {TIMEOUT_S:.0f} s", where=command[-1]) from None
    except OSError as error:
        raise BuildError(f"cannot be started: {error.strerror}", where=command[0]) from None


def _quote_lines(log: str, text: str) -> str:
    """glslang's errors, each with the line of source that it names."""
    source = text.splitlines()
    out: list[str] = []
    for line in log.splitlines():
        found = re.match(r"(?:ERROR|WARNING): [^:]*:(\d+): ", line)
        if not line.startswith("ERROR"):
            continue
        out.append(line)
        if found and 0 < int(found[1]) <= len(source):
            out.append(f"    {found[1]} | {source[int(found[1]) - 1].strip()}")
    return "\n".join(out) or log.strip() or "refused without a word"
