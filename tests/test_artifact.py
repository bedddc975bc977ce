"""A damaged or absurd artifact is refused in one line, or loads and works; never half-written."""

from __future__ import annotations

import copy
import errno
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from cpu_rig import Spec, model_file
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from models import Tiny

import speccc
from speccc.errors import InputError, UnsupportedError
from speccc.runtime import artifact_file
from speccc.runtime.artifact_file import (
    MANIFEST,
    PAGE,
    SCHEMA,
    Entries,
    read_entries,
    write_entries,
)
from speccc.runtime.step_spec import seal

Manifest = dict[str, Any]
T = TypeVar("T")


@functools.cache
def good(kv: str = "f16") -> bytes:
    """The bytes of one small artifact, compiled once."""
    with tempfile.TemporaryDirectory(prefix="speccc-") as name:
        folder = Path(name)
        path = folder / "m.speccc"
        spec = Spec(Tiny(layers=1, hidden=32, heads=2, kv_heads=1, ffn=32), "f32")
        speccc.compile(model_file(spec, folder), output=path, kv=kv, context=64)
        return path.read_bytes()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "m.speccc"
    path.write_bytes(good())
    return path


def use(path: Path) -> None:
    """Loads and runs an artifact: what a caller may do with one that was not refused."""
    model = speccc.load(path)
    logits = model.session(context=32).forward([1, 2, 3])
    assert logits.shape == (3, 260)


def refused(path: Path, *words: str) -> None:
    """The artifact gives one line that names the file and has these words."""
    with pytest.raises(InputError) as caught:
        use(path)
    text = str(caught.value)
    assert "\n" not in text, text
    assert text.startswith(str(path)), text
    assert all(w in text for w in words), text


def edit(path: Path, change: Callable[[Manifest], None], *, sealed: bool = True) -> None:
    """Writes the artifact again with another manifest, and unless told not to, a fitting seal."""
    entries = read_entries(path)
    manifest = copy.deepcopy(entries.manifest)
    change(manifest)
    if sealed and isinstance(manifest.get("step"), dict):
        manifest["step"]["seal"] = seal(manifest["step"], entries.data["step.so"])
    data = {n: d.copy() for n, d in entries.data.items()}
    write_entries(path, manifest, data)


def test_a_good_artifact_works(artifact: Path) -> None:
    use(artifact)
    edit(artifact, lambda m: None)
    use(artifact)


def test_entries_start_on_pages_and_read_back(tmp_path: Path) -> None:
    data = {"a": b"x" * 5000, "b": b"", "c/d": b"yz"}
    write_entries(tmp_path / "f", {"n": 1}, data)
    back = read_entries(tmp_path / "f")
    assert {n: bytes(d) for n, d in back.data.items()} == data
    base = np.frombuffer((tmp_path / "f").read_bytes(), np.uint8)
    at = bytes(base).find(b"x" * 5000)
    assert at % PAGE == 0
    assert zipfile.ZipFile(tmp_path / "f").testzip() is None


def test_an_artifact_is_as_if_written_in_order(tmp_path: Path) -> None:
    """Hashes are computed beside the writing; nobody sees that in the file."""
    data = {"a": b"x" * 5000, "b": b"", "c/d": np.arange(1 << 18, dtype=np.uint8)}
    manifest = write_entries(tmp_path / "f", {"n": 1}, data)
    for name, raw in data.items():
        facts = {"size": len(raw), "sha256": hashlib.sha256(bytes(raw)).hexdigest()}
        assert manifest["entries"][name] == facts
    with (tmp_path / "g").open("w+b") as file, zipfile.ZipFile(file, "w") as out:
        artifact_file._add(out, MANIFEST, json.dumps(manifest, indent=1).encode())
        for name, raw in data.items():
            artifact_file._add(out, name, raw)
        artifact_file._seal(out, file)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "g").read_bytes()


def test_a_manifest_of_another_size_is_not_written_over(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w+b") as file, zipfile.ZipFile(file, "w") as out:
        artifact_file._add(out, MANIFEST, b"{}")
        with pytest.raises(ValueError, match="3 bytes in the place of 2"):
            artifact_file._rewrite(file, out.getinfo(MANIFEST), b"{ }")


def test_truncated_anywhere_is_refused(artifact: Path) -> None:
    whole = good()
    cuts = {
        *range(0, 64),
        *range(0, len(whole), len(whole) // 150),
        *range(len(whole) - 64, len(whole)),
    }
    for cut in sorted(cuts):
        artifact.write_bytes(whole[:cut])
        refused(artifact)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_are_refused(flips: list[tuple[int, int]]) -> None:
    """Wherever they are: in entries, in the manifest, in the directory, in the padding."""
    raw = bytearray(good())
    for at, mask in flips:
        raw[at % len(raw)] ^= mask
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        path = Path(folder) / "m.speccc"
        path.write_bytes(raw)
        entries = attempt(lambda: read_entries(path))
        assert (entries is not None) == (raw == good())


def test_each_byte_around_the_entries_is_looked_at() -> None:
    """The last page of the file, which holds the directory, and the first, before the manifest."""
    whole = good()
    places = [*range(60), *range(len(whole) - 700, len(whole))]
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        path = Path(folder) / "m.speccc"
        for at in places:
            raw = bytearray(whole)
            raw[at] ^= 1
            path.write_bytes(raw)
            assert attempt(lambda: read_entries(path)) is None, at


def attempt(work: Callable[[], T]) -> T | None:
    """What the work gives, or None when it was refused in one line."""
    try:
        return work()
    except InputError as e:
        if "\n" in str(e):
            raise
        return None


def same(entries: Entries) -> None:
    """Nothing that is read differs from the good artifact."""
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        path = Path(folder) / "m.speccc"
        path.write_bytes(good())
        right = read_entries(path)
        assert entries.manifest == right.manifest
        assert {n: bytes(d) for n, d in entries.data.items()} == {
            n: bytes(d) for n, d in right.data.items()
        }


def test_every_byte_of_the_manifest_counts(artifact: Path) -> None:
    whole = good()
    at = whole.find(b'{\n "model"')
    for offset in range(at, at + 3000, 37):
        artifact.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        refused(artifact)


def rezip(path: Path, names: Mapping[str, str], twice: str | None = None) -> None:
    """The zip with entries renamed (old name -> new name), one of them there twice."""
    data = {n: bytes(d) for n, d in read_entries(path).data.items()}
    with zipfile.ZipFile(path) as z:
        manifest = z.read(MANIFEST)
    with path.open("w+b") as file, zipfile.ZipFile(file, "w") as out:
        artifact_file._add(out, MANIFEST, manifest)
        for name, raw in data.items():
            artifact_file._add(out, names.get(name, name), raw)
        if twice is not None:
            with pytest.warns(UserWarning, match="Duplicate name"):
                artifact_file._add(out, twice, data[twice])
        artifact_file._seal(out, file)


def test_swapped_doubled_and_missing_entries(artifact: Path) -> None:
    rezip(artifact, {"weights": "vectors", "vectors": "weights"})
    refused(artifact, "entry", "manifest")
    artifact.write_bytes(good())
    rezip(artifact, {}, twice="vectors")
    refused(artifact, "twice")
    artifact.write_bytes(good())
    rezip(artifact, {"weights": "weights2"})
    refused(artifact, "weights", "manifest")


def test_overlapping_entries(artifact: Path) -> None:
    """Two directory records that point at one place."""
    raw = bytearray(good())
    with zipfile.ZipFile(artifact) as z:
        a, b = z.getinfo("weights"), z.getinfo("vectors")
    record = raw.rfind(b"vectors") - 46
    assert raw[record : record + 4] == b"PK\1\2"
    raw[record + 42 : record + 46] = a.header_offset.to_bytes(4, "little")
    assert a.header_offset != b.header_offset
    artifact.write_bytes(raw)
    refused(artifact, "a whole speccc artifact")


@pytest.mark.parametrize("name", ["step.so", "weights", "vectors", "tokenizer.json"])
def test_an_artifact_without_an_entry(artifact: Path, name: str) -> None:
    entries = read_entries(artifact)
    data = {n: d.copy() for n, d in entries.data.items() if n != name}
    write_entries(artifact, entries.manifest, data)
    refused(artifact, name)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for raw in (b"", b"GGUF" + bytes(100), b"x" + os.urandom(5000)):
        path.write_bytes(raw)
        refused(path, "is no artifact: `speccc compile`")
    path.write_bytes(b"PK\3\4")
    refused(path, "a whole speccc artifact")
    refused(tmp_path, "is no artifact: `speccc compile`")
    refused(tmp_path / "absent", "no such file")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(MANIFEST, "{}" * 1000)
    refused(path, "compressed")


@pytest.mark.parametrize("schema", [0, 1, 2, 999, "3", None])
def test_other_schemas(artifact: Path, schema: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_file, "SCHEMA", schema)
    edit_raw = read_all(artifact)
    write_entries(artifact, edit_raw.manifest, {n: d.copy() for n, d in edit_raw.data.items()})
    monkeypatch.undo()
    refused(artifact, "schema", "compile the model again")


def read_all(path: Path) -> Entries:
    """The good artifact, whatever schema is patched in."""
    current = artifact_file.SCHEMA
    artifact_file.SCHEMA = SCHEMA
    try:
        return read_entries(path)
    finally:
        artifact_file.SCHEMA = current


ABSURD = (None, -1, 0, 10**30, 1.5, 1e300, True, "x\ny", "", [], [None], {}, {"a": -1})


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every field of a manifest is; of long lists, the first two."""
    out = [at] if at else []
    if isinstance(value, dict):
        for k, v in value.items():
            out += paths(v, (*at, k))
    elif isinstance(value, list):
        for i, v in enumerate(value[:2] if at[-1] == "frequencies" else value):
            out += paths(v, (*at, i))
    return out


@functools.cache
def trusted_fields() -> tuple[tuple[Any, ...], ...]:
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        path = Path(folder) / "m.speccc"
        path.write_bytes(good())
        manifest = read_entries(path).manifest
    parts = ("step", "model", "kv", "context", "drafter", "target", "isa", "machine")
    parts += ("verify_ms", "memory_plan")
    return tuple(p for p in paths({k: manifest[k] for k in parts}) if p[-1] != "seal")


def put(manifest: Manifest, where: tuple[Any, ...], value: object) -> None:
    at: Any = manifest
    for part in where[:-1]:
        at = at[part]
    at[where[-1]] = copy.deepcopy(value)


def get(manifest: Manifest, where: tuple[Any, ...]) -> object:
    at: Any = manifest
    for part in where:
        at = at[part]
    return at


# What only the seal binds to the code (edits of these that keep the seal are the author's own).
UNCHECKED = ("arena", "scratch", "sizes", "role", "frequencies")


@settings(max_examples=200)
@given(st.data())
def test_absurd_fields_are_refused_or_harmless(data: st.DataObject) -> None:
    where = data.draw(st.sampled_from(trusted_fields()))
    value = data.draw(st.sampled_from(ABSURD))
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        path = Path(folder) / "m.speccc"
        path.write_bytes(good())
        assume(get(read_entries(path).manifest, where) != value)
        safe = where[0] == "step" and not set(where) & set(UNCHECKED)
        edit(path, lambda m: put(m, where, value), sealed=safe and not workspace(where))
        session = attempt(lambda: speccc.load(path).session(context=32))
        if session is not None:
            assert where[0] != "step"
            assert session.context == 32


def test_a_table_that_nobody_fills_is_refused(artifact: Path) -> None:
    edit(artifact, lambda m: put(m, ("step", "ropes"), []), sealed=True)
    refused(artifact, "buffer rope0_", "is no workspace")


def workspace(where: tuple[Any, ...]) -> bool:
    """Whether a field describes a buffer beyond those that the session fills."""
    return len(where) > 2 and where[1] == "bufs" and where[2] > 7


@pytest.mark.parametrize("where", [("step", "arena"), ("step", "max_rows"), ("step", "sizes")])
def test_a_step_belongs_to_its_code(artifact: Path, where: tuple[str, ...]) -> None:
    def change(m: Manifest) -> None:
        value = m["step"][where[1]]
        m["step"][where[1]] = value[::-1] if isinstance(value, list) else value - 16

    edit(artifact, change, sealed=False)
    refused(artifact, "step.so")


EDITS: dict[str, tuple[Callable[[Manifest], object], str]] = {
    "vocabulary": (lambda m: m["step"].update(vocab=261), "vocab"),
    "rows": (lambda m: m["step"].update(max_rows=65), "path"),
    "caches": (lambda m: buf(m, "v_cache")["shape"].__setitem__(0, 2), "v_cache"),
    "cache type": (lambda m: buf(m, "v_cache").update(dtype="f32"), "v_cache"),
    "missing": (lambda m: m["step"]["bufs"].remove(buf(m, "vectors")), "vectors"),
    "twice": (lambda m: m["step"]["bufs"].append(dict(buf(m, "vectors"))), "twice"),
    "weights": (lambda m: buf(m, "weights").update(dtype="f32"), "weights"),
    "rope": (lambda m: m["step"]["ropes"][0]["frequencies"].pop(), "rope"),
    "order": (lambda m: m["step"]["bufs"].insert(0, m["step"]["bufs"].pop(3)), "begin"),
    "geometry": (lambda m: m["model"].update(n_layers=2), "geometry"),
    "kv": (lambda m: m["kv"].update(type="i8"), "kv.type"),
    "context": (lambda m: m.update(context=1 << 20), "context"),
    "drafter": (lambda m: m.update(drafter="eagle"), "drafter"),
    "times": (lambda m: m.update(verify_ms={"2": 1.0}), "verify_ms"),
    "no time": (lambda m: m.update(verify_ms={"1": 0.0}), "verify_ms"),
    "cost": (lambda m: m.update(verify_cost=[1]), "verify_cost"),
    "splits": (lambda m: m.update(verify_cost={"splits": {"5": [4, "1"]}}), "verify_cost"),
    "no rows": (lambda m: m.update(verify_cost={"splits": {"5": [5, 0]}}), "verify_cost"),
    "wide split": (lambda m: m.update(verify_cost={"splits": {"65": [65]}}), "verify_cost"),
    "short split": (lambda m: m.update(verify_cost={"splits": {"5": [2, 2]}}), "5 rows"),
    "idle split": (lambda m: m.update(verify_cost={"splits": {"5": [5, 1]}}), "5 rows"),
}


def buf(m: Manifest, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(b for b in m["step"]["bufs"] if b["name"] == name)
    return found


@pytest.mark.parametrize("name", EDITS)
def test_fields_are_checked_against_each_other(artifact: Path, name: str) -> None:
    change, word = EDITS[name]
    edit(artifact, lambda m: void(change(m)))
    with pytest.raises(InputError, match=word):
        use(artifact)


def void(_: object) -> None:
    """Drops a value."""


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("isa", "avx9000", ("--isa avx9000", "compile the model here")),
        ("machine", "riscv64", ("riscv64", "this machine is")),
        ("target", "abacus:x", ("abacus:x", "this version runs cpu")),
    ],
)
def test_code_for_another_machine(
    artifact: Path, field: str, value: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by name before the library is loaded."""
    loaded = "speccc.runtime.devices.tvm_function._loaded"
    monkeypatch.setattr(loaded, lambda *_: pytest.fail("loaded"))
    edit(artifact, lambda m: m.update({field: value}))
    with pytest.raises(UnsupportedError) as caught:
        use(artifact)
    assert all(w in str(caught.value) for w in words)


def test_a_cpu_that_lacks_the_instruction_set(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speccc.targets.cpu.isa.cpu_flags", lambda: frozenset())
    edit(artifact, lambda m: m.update(isa="avx2"))
    with pytest.raises(UnsupportedError, match="avx2"):
        speccc.load(artifact)


def failing(error: BaseException) -> Callable[[Any, str, Any], None]:
    """Adds the manifest, then fails."""
    add = artifact_file._add

    def work(out: Any, name: str, raw: Any) -> None:
        if name != MANIFEST:
            raise error
        add(out, name, raw)

    return work


def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk full, an interrupt, any exception: no file, and an old one stays as it was."""
    path = tmp_path / "m.speccc"
    path.write_bytes(b"old")
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):
        monkeypatch.setattr(artifact_file, "_add", failing(error))
        with pytest.raises((InputError, KeyboardInterrupt)) as caught:
            write_entries(path, {}, {"a": b"1", "b": b"2"})
        monkeypatch.undo()
        if isinstance(error, OSError):
            assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
        assert [p.name for p in tmp_path.iterdir()] == ["m.speccc"]
        assert path.read_bytes() == b"old"


def test_without_nameless_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_file, "_open_nameless", lambda _: None)
    write_entries(tmp_path / "f", {}, {"a": b"1"})
    assert bytes(read_entries(tmp_path / "f").data["a"]) == b"1"
    test_a_failure_while_writing_leaves_nothing(Path(tempfile.mkdtemp(dir=tmp_path)), monkeypatch)


KILLED = """
import sys, time
from pathlib import Path
from speccc.runtime import artifact_file
add = artifact_file._add
def slow(out, name, raw):
    add(out, name, raw)
    if name == "a":
        out.fp.flush()
        print("writing", flush=True)
        time.sleep(60)
artifact_file._add = slow
artifact_file.write_entries(Path(sys.argv[1]), {}, {"a": bytes(1 << 20), "b": b"2"})
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="needs files without a name")
def test_a_killed_writer_leaves_no_file(tmp_path: Path) -> None:
    held = artifact_file._open_nameless(tmp_path)
    if held is None:
        pytest.skip("this file system has no files without a name")
    os.close(held)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "m.speccc")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        child.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_entries(tmp_path / "no" / "m.speccc", {}, {})
    with pytest.raises(InputError, match="cannot be written"):
        write_entries(tmp_path, {}, {})
