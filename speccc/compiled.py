"""A model file or an artifact in, a loaded model out; a model file is compiled at most once.

Artifacts of model files are kept in the user's cache under the hash of their content, the options
and the compiler, so a changed file or a new compiler never meets an old artifact.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from speccc import user_cache
from speccc.errors import InputError
from speccc.ir.place import check_place
from speccc.quick_import import without_torch
from speccc.runtime.destination import ZIP_MAGIC

if TYPE_CHECKING:
    from speccc.api import Model

Report = Callable[[str, int, int], None]
"""(work, done, total)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What decides an artifact beside the model."""

    target: str = "cpu"
    isa: str = "auto"
    kv: str = "f16"
    context: int | None = None
    weights: str | None = None
    activations: str = "int8"
    attention: str = "f32"


def is_artifact(path: Path) -> bool:
    """Whether the file is one of ours, by its first bytes. InputError when it cannot be read."""
    if path.is_dir():
        return False
    try:
        check_place(path)
        with path.open("rb") as stream:
            return stream.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path)) from None


def model_file(path: Path) -> Path:
    """The path, of a model to compile. InputError for an artifact."""
    if is_artifact(path):
        raise InputError(
            "is compiled already; use it with `speccc run`, or name the model file",
            where=str(path),
        )
    return path


def open_any(path: Path, options: Options, report: Report | None = None) -> Model:
    """Load an artifact, or a model file through the cache. InputError names what is wrong.

    Options of the compiler that are not the default are refused for an artifact: it has its own.
    """
    from speccc.api import load

    if is_artifact(path):
        _refuse(path, options)
        return load(path)
    return cached_model(path, options, report)


def cached_model(path: Path, options: Options, report: Report | None = None) -> Model:
    """The model of a file or folder from the user's cache, compiled when missing or damaged.

    The artifact is the returned model's `path`.
    """
    from speccc.api import compile as compile_model
    from speccc.api import load

    target = resolve_target(options.target)
    isa = resolve_isa(options.isa) if target == "cpu" else options.isa
    key = {**asdict(options), "isa": isa, "target": target, "machine": platform.machine()}
    kept = user_cache.artifact_path(content_fingerprint(path), key)
    if kept.is_file():
        try:
            return load(kept)
        except InputError:  # damaged or of another schema: compile it anew
            kept.unlink()
    if target != "cpu":
        from speccc.device_here import need_device

        need_device(target)  # before minutes of compiling for it
    with without_torch():
        made = compile_model(
            path,
            target=target,
            context=options.context,
            output=kept,
            progress=report,
            isa=isa,
            kv=options.kv,
            weights=options.weights,
            activations=options.activations,
            attention=options.attention,
        )
    from speccc.autotune.cache import warn

    for text in made.manifest["notes"]:  # once, as the artifact is kept
        warn(text)
    return made


def content_fingerprint(path: Path) -> str:
    """SHA-256 in hex over a model file, or over the names and contents of a folder's files.

    Nothing is parsed: a model whose artifact is kept was checked when it was compiled.
    """
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.is_file())
    total = hashlib.sha256()
    for file in files:
        inner = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                inner.update(chunk)
        total.update(f"{file.name}\0{inner.hexdigest()}\n".encode())
    return total.hexdigest()


def resolve_isa(name: str) -> str:
    """The instruction set a name means on this machine; UnsupportedError lists the names."""
    from speccc.targets.cpu.isa import by_name

    return by_name(name).name


def resolve_target(name: str) -> str:
    """The target a name means: of a bare backend, the device here. UnsupportedError for none."""
    if name == "cpu":
        return name
    from speccc.device_here import check_target, device_target

    check_target(name)
    return device_target(name).name


def _refuse(path: Path, options: Options) -> None:
    default = Options()
    flags = {"--isa": options.isa != default.isa, "--kv": options.kv != default.kv}
    flags["--weights"] = options.weights != default.weights
    flags["--activations"] = options.activations != default.activations
    flags["--attention"] = options.attention != default.attention
    flags["--target"] = options.target != default.target
    for flag, given in flags.items():
        if given:
            raise InputError(
                f"is compiled already; {flag} goes to `speccc compile`", where=str(path)
            )
