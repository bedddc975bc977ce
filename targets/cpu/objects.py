"""TensorIR functions -> object files, each made once for its content, several at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tvm
from tvm import tirx

from speccc.scratch import Scratch
from speccc.targets.cpu import pipeline
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.kernel_function import Source
from speccc.targets.cpu.object_store import ObjectStore

OPT_LEVEL = 1
"""The code is vectorised and unrolled as written: -O2 and -O3 take longer and gain nothing."""


def triple(isa: Isa) -> str:
    """LLVM's name of the machine; one without an architecture is built for the one at hand."""
    return f"{isa.arch or os.uname().machine}-unknown-linux-gnu"


def tvm_target(isa: Isa) -> tvm.target.Target:
    """LLVM settings for the instruction set; code for another machine is built, not run."""
    spec: dict[str, object] = {"kind": "llvm", "opt-level": OPT_LEVEL, "mtriple": triple(isa)}
    if isa.mcpu:
        spec["mcpu"] = isa.mcpu
    if isa.attrs:
        spec["mattr"] = list(isa.attrs)
    return tvm.target.Target(spec)


def object_key(isa: Isa, source: Source) -> str:
    """SHA-256 in hex of all that decides the object."""
    settings = (pipeline.VERSION, tvm.__version__, OPT_LEVEL, triple(isa), isa.mcpu, *isa.attrs)
    head = "\0".join(str(part) for part in (*settings, source.packed, source.symbol))
    return hashlib.sha256(f"{head}\0{source.text}".encode()).hexdigest()


def build_object(isa: Isa, source: Source) -> bytes:
    """The relocatable object of one function."""
    module = tvm.IRModule({source.symbol: source.func})
    name = pipeline.register(packed=source.packed)
    built = tirx.build(module, target=tvm_target(isa), pipeline=name)
    with Scratch() as folder:
        path = folder / "function.o"
        built.write_to_file(str(path), "o")
        return path.read_bytes()


def build_objects(
    isa: Isa, sources: Sequence[Source], store: ObjectStore, jobs: int
) -> list[bytes]:
    """The objects of the functions in order: from the store, else built by `jobs` threads.

    TVM gives the interpreter's lock back while LLVM works.
    """
    keys = [object_key(isa, source) for source in sources]
    made = {key: store.get(key) for key in keys}
    # Long texts take long to build: they go first, so that none is left running alone at the end.
    missing = {k: s for k, s in zip(keys, sources, strict=True) if made[k] is None}
    order = sorted(missing, key=lambda key: -len(missing[key].text))

    def build(key: str) -> None:
        made[key] = data = build_object(isa, missing[key])
        store.put(key, data)

    tvm_target(isa)  # sets LLVM up, which is not for two threads at once
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        list(pool.map(build, order))
    return [data for key in keys if (data := made[key]) is not None]
