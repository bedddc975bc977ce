"""Calls in LLVM's text for AMD: arguments that are the same in all lanes are said to be so."""

from __future__ import annotations

import pytest

from speccc.targets.triton_calls import uniform_calls

BEFORE = """\
define amdgpu_kernel void @step(ptr addrspace(1) inreg %0, i64 inreg %1) #0 {
  tail call fastcc void @m.embed__i64(ptr addrspace(1) nonnull %0, i64 %1, float %2)
  call fastcc void @"odd name"(i64 add (i64 1, i64 2), <2 x i32> %3), !dbg !7
  tail call fastcc void @m.none()
  tail call void @llvm.amdgcn.s.barrier()
  ret void
}
define internal fastcc void @m.embed__i64(ptr addrspace(1) nofree captures(none) %0, i64 range(i64 -2, 30) %1, float %2) unnamed_addr #1 {
  ret void
}
define internal fastcc void @"odd name"(i64 %0, <2 x i32> %1) unnamed_addr #1 {
  ret void
}
define internal fastcc void @m.none() unnamed_addr #1 {
  ret void
}
declare void @llvm.amdgcn.s.barrier() #2
"""  # noqa: E501
AFTER = """\
define amdgpu_kernel void @step(ptr addrspace(1) inreg %0, i64 inreg %1) #0 {
  %once.1.0 = call ptr addrspace(1) asm sideeffect "", "=s,0"(ptr addrspace(1) nonnull %0)
  %once.1.1 = call i64 asm sideeffect "", "=s,0"(i64 %1)
  call fastcc void @m.embed__i64(ptr addrspace(1) inreg %once.1.0, i64 inreg %once.1.1, float %2)
  %once.2.0 = call i64 asm sideeffect "", "=s,0"(i64 add (i64 1, i64 2))
  call fastcc void @"odd name"(i64 inreg %once.2.0, <2 x i32> %3), !dbg !7
  call fastcc void @m.none()
  tail call void @llvm.amdgcn.s.barrier()
  ret void
}
define internal fastcc void @m.embed__i64(ptr addrspace(1) inreg nofree captures(none) %0, i64 inreg range(i64 -2, 30) %1, float %2) unnamed_addr #1 {
  ret void
}
define internal fastcc void @"odd name"(i64 inreg %0, <2 x i32> %1) unnamed_addr #1 {
  ret void
}
define internal fastcc void @m.none() unnamed_addr #1 {
  ret void
}
declare void @llvm.amdgcn.s.barrier() #2
"""  # noqa: E501


def test_phases_take_scalar_registers() -> None:
    """Pointers and whole numbers do, on both sides of a call; floats and vectors may differ."""
    assert uniform_calls(BEFORE) == AFTER


def test_what_the_module_does_not_define_stays() -> None:
    """Kernels, and calls of functions that others give."""
    kernel = BEFORE.split("define internal")[0]
    assert uniform_calls(kernel) == kernel


@pytest.mark.parametrize(
    "use",
    ["  musttail call fastcc void @m.none()", "  store ptr @m.none, ptr addrspace(5) %4"],
)
def test_a_phase_that_is_used_otherwise_is_refused(use: str) -> None:
    """Its caller would put arguments where it does not look for them."""
    with pytest.raises(ValueError, match=r"otherwise than by a plain call: (?:must|store)"):
        uniform_calls(BEFORE.replace("  ret void\n", f"{use}\n  ret void\n", 1))


def test_text_that_is_no_call_is_refused() -> None:
    with pytest.raises(ValueError, match="parentheses without an end"):
        uniform_calls("define internal fastcc void @f(i64 %0")
