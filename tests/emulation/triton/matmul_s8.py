"""c[m, n] = a[m, k] b[n, k]^T, s8 x s8 -> s32; sizes are multiples of the tile."""

import triton
import triton.language as tl


@triton.jit
def matmul_s8(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.int32)
    for at in range(0, k, BK):
        inner = at + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * k + inner[None, :])
        right = tl.load(b + cols[None, :] * k + inner[:, None])
        acc = tl.dot(left, right, acc, out_dtype=tl.int32)
    tl.store(c + rows[:, None] * n + cols[None, :], acc)
