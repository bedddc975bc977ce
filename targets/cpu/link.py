"""Object files -> one shared library, by the C compiler at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from speccc.errors import SpecccError, UnsupportedError
from speccc.scratch import Scratch

EXPORTS = "{ global: __tvm_ffi_*; __TVM*; local: *; };\n"
"""What TVM's runtime looks up; kernels are called directly and cannot meet another library's."""


def linker() -> str | None:
    """The C compiler that links shared libraries: $CC, cc, gcc or clang."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    return None


def link(objects: Sequence[bytes]) -> bytes:
    """The shared library of these relocatable objects; the same bytes for the same objects."""
    cc = linker()
    if cc is None:
        raise UnsupportedError("no C compiler found to link kernels: install gcc, or set CC")
    with Scratch() as at:
        names = [f"{n}.o" for n in range(len(objects))]
        for name, data in zip(names, objects, strict=True):
            (at / name).write_bytes(data)
        (at / "exports").write_text(EXPORTS)
        flags = ["-shared", "-fPIC", "-Wl,--version-script=exports", "-Wl,-z,noexecstack"]
        command = [cc, *flags, "-o", "step.so", *names]
        done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise SpecccError(f"{cc} failed to link a kernel: {lines[-1]}")
        return (at / "step.so").read_bytes()
