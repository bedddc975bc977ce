"""What an artifact may be written over: nothing, or an older artifact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from models import tiny_llama

import speccc
from speccc.errors import InputError
from speccc.runtime.destination import ZIP_MAGIC, artifact_destination


def test_new_files_and_old_artifacts_are_taken(tmp_path: Path) -> None:
    """A link leads to the file it names."""
    old = tmp_path / "old.speccc"
    old.write_bytes(ZIP_MAGIC + b"rest")
    link = tmp_path / "link.speccc"
    link.symlink_to(old)
    assert artifact_destination(tmp_path / "new.speccc") == tmp_path.resolve() / "new.speccc"
    assert artifact_destination(old) == artifact_destination(link) == old.resolve()


def test_everything_else_is_refused(tmp_path: Path) -> None:
    """Pipes, folders, other people's files and the model itself stay as they are."""
    pipe, notes, model = tmp_path / "pipe", tmp_path / "notes.txt", tmp_path / "m.gguf"
    os.mkfifo(pipe)
    notes.write_text("mine")
    model.write_bytes(ZIP_MAGIC)
    for path, why in (
        (pipe, "device or pipe"),
        (Path("/dev/null"), "device or pipe"),
        (notes, "another kind"),
        (tmp_path, "folder"),
        (tmp_path / "no" / "m.speccc", "does not exist"),
        (model, "the model itself"),
        (Path(), "folder"),
    ):
        with pytest.raises(InputError, match=why):
            artifact_destination(path, model)
    assert notes.read_text() == "mine"


def test_the_api_does_not_overwrite_the_model(tmp_path: Path) -> None:
    """As on the command line."""
    model = tiny_llama(tmp_path)
    before = model.read_bytes()
    with pytest.raises(InputError, match="the model itself"):
        speccc.compile(model, output=model)
    assert model.read_bytes() == before
