"""Arrays on cache lines; weights in huge pages where there are such and room for a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cpu_rig import Spec, compiled, model_file, unmeasured
from models import Tiny

from speccc import api
from speccc.runtime import artifact_file
from speccc.runtime.aligned import ALIGN, PAGES_OF_ITS_OWN, aligned, huge_pages


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (PAGES_OF_ITS_OWN // 4 + 1,)])
def test_zeros_on_a_cache_line(shape: tuple[int, ...]) -> None:
    array = aligned(shape, np.float32)
    assert array.shape == shape
    assert array.dtype == np.float32
    assert not array.any()
    assert array.ctypes.data % ALIGN == 0 or array.size == 0


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("[always] madvise never\n", True),
        ("always [madvise] never\n", True),
        ("always madvise [never]\n", False),
        (None, False),
    ],
)
def test_whether_there_are_huge_pages(setting: str | None, expected: bool, tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    if setting is not None:
        (folder / "enabled").write_text(setting)
    assert huge_pages(tmp_path) is expected


@pytest.mark.parametrize(
    ("pages", "room", "copied"),
    [(True, None, True), (True, 1 << 40, True), (True, 1000, False), (False, None, False)],
)
def test_weights_are_copied_if_it_helps_and_there_is_room(
    pages: bool, room: int | None, copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(Tiny())
    expected = compiled(spec).generate([1, 2, 3], max_tokens=8).tokens
    again = unmeasured(model_file(spec, tmp_path))
    monkeypatch.setattr(api, "huge_pages", lambda: pages)
    monkeypatch.setattr(api, "available_memory", lambda: room)
    monkeypatch.setattr(artifact_file, "_PIECE", 4096 + 1)
    mapped = again._entries.data["weights"]
    found = again._resident(64, 1)
    assert (found is not mapped) is copied
    np.testing.assert_array_equal(found, mapped)
    assert again._resident(64, 1) is found
    assert again.generate([1, 2, 3], max_tokens=8).tokens == expected
