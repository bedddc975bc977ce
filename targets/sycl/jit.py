"""SYCL text -> SPIR-V by libsycl-jit of Intel's `intel-sycl-rt` wheel, as a program of its own.

    python sycl_jit.py LIBRARY NAME [FLAG...] < text > SPIR-V

It runs by itself, as the compiler brings an LLVM of its own, which must not meet another one in
our process. The library has one entry with C linkage, `compileSYCL`; its structures are those of
version 2026.2 and may change with any other. Exit status 1, with the compiler's words on stderr,
when the text is refused.
"""

from __future__ import annotations

import ctypes
import os
import sys

SPIRV = 2
"""The result's format, by the library's numbers."""
PREAMBLE = "Device compilation failed\nDetailed information:\n"


class _File(ctypes.Structure):
    _fields_ = (("path", ctypes.c_char_p), ("text", ctypes.c_char_p))


class _View(ctypes.Structure):
    """A pointer and a count; so are the library's own arrays."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Image(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_uint32),
        ("address_bits", ctypes.c_uint64),
        ("binary", _View),
        ("symbols", _View),
        ("properties", _View),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int),
        ("images", _View),
        ("options", ctypes.c_char_p),
        ("ir", _View),
        ("log", ctypes.c_char_p),
        # A newer library might write more than we know of.
        ("spare", ctypes.c_char * 256),
    )


def compile_text(library: str, name: str, flags: list[str], text: bytes) -> bytes:
    """The SPIR-V of one text. RuntimeError with the compiler's words when there is none."""
    function = ctypes.CDLL(library).compileSYCL
    function.restype = None  # it returns through its first argument, a place for the result
    result = _Result()
    words = (ctypes.c_char_p * max(1, len(flags)))(*(f.encode() for f in flags))
    nothing = _View(None, 0)
    function(
        ctypes.byref(result),
        _File(name.encode(), text),
        nothing,
        _View(ctypes.cast(words, ctypes.c_void_p), len(flags)),
        nothing,
        ctypes.c_bool(False),
        ctypes.c_uint32(SPIRV),
    )
    log = (result.log or b"").decode(errors="replace").removeprefix(PREAMBLE).strip()
    images = result.images
    if result.error or images.size != 1:
        raise RuntimeError(log or f"error {result.error}, {images.size} images, no word of why")
    image = _Image.from_address(images.data)
    if image.format != SPIRV:
        raise RuntimeError(f"the result has format {image.format}, not {SPIRV}")
    if image.symbols.size == 0:
        raise RuntimeError("the text has no kernel")
    return ctypes.string_at(image.binary.data, image.binary.size)


def main() -> int:
    """The program."""
    library, name, *flags = sys.argv[1:]
    try:
        spirv = compile_text(library, name, flags, sys.stdin.buffer.read())
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(spirv)
    sys.stdout.flush()
    os._exit(0)  # the compiler's own threads and destructors have nothing left to say


if __name__ == "__main__":
    sys.exit(main())
