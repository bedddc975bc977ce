"""What the golden machine refuses while it runs a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fragment_rig import rewritten
from proof_program import inputs, proof_program

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.interp_tile import run_kernel
from speccc.ir.tile import Kernel, Reduce, Stmt


@pytest.mark.parametrize("name", ["xi", "xh"])
def test_sums_of_codes_must_be_that(name: str) -> None:
    """Some targets start from the sums, others from the codes: they must not disagree."""
    p = proof_program(64, 16, "nvfp4", widths=(1,))
    run_kernel(p.kernel, inputs(p, 1), {p.m: 1})

    def off_by_lanes(s: Stmt) -> Stmt:
        wrong = isinstance(s, Reduce) and s.dst.name == name
        return replace(s, value=ex.add(s.value, 1)) if wrong else s

    body = rewritten(p.kernel.body, off_by_lanes)
    kernel = Kernel("wrong", p.kernel.bufs, p.kernel.scalars, body)
    with pytest.raises(VerifyError, match=f"{name} are not the sums of the codes in xq"):
        run_kernel(kernel, inputs(p, 1), {p.m: 1})
