"""Apple's compiler, where there is one; elsewhere a script stands for it, up to its call."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from metal_rig import lowered, rendered
from proof_program import proof_program

from speccc.targets.base import ToolMissingError
from speccc.targets.build_error import BuildError
from speccc.targets.metal import metal_build
from speccc.targets.metal.metal_build import MEND, compile_msl, metal_version


def test_a_mac_builds_it_and_others_say_what_is_missing() -> None:
    text = rendered(lowered(proof_program(96, 32).kernel)).text
    if metal_version() is not None:
        assert compile_msl(text).startswith(b"MTLB")
        return
    with pytest.raises(ToolMissingError) as caught:
        compile_msl(text)
    assert str(caught.value) == MEND
    assert "\n" not in MEND


XCRUN = """#!/bin/sh
test "$1 $2 $3" = "-sdk macosx metal" || exit 9
shift 3
test "$1" = --version && { echo "Apple metal version 32023.100"; exit 0; }
printf 'MTLB %s' "$*" | tee "$(dirname "$0")/words"
grep -q "kernel void bad" "$5" && { echo "kernel.metal:1:1: error: no" >&2; exit 1; }
cp "$5" "$7"
"""


def test_the_compiler_is_called_with_exact_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to Apple's own program, which a script stands for."""
    tool = tmp_path / "xcrun"
    tool.write_text(XCRUN)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert metal_version() == "Apple metal version 32023.100"
    assert compile_msl("kernel void good() {}") == b"kernel void good() {}"
    words = (tmp_path / "words").read_text()
    assert "-fno-fast-math" in words
    assert "-ffp-contract=off" in words
    with pytest.raises(BuildError, match=r"^step: .*kernel.metal:1:1: error: no"):
        compile_msl("kernel void bad() {}", name="step")


def test_a_compiler_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "xcrun"
    tool.write_text("#!/bin/sh\nexec sleep 5\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(metal_build, "TIMEOUT_S", 0.1)
    with pytest.raises(BuildError, match="no answer"):
        compile_msl("kernel void k() {}")
