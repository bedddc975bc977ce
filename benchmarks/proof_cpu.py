"""Multiply-adds a second of the proof program (RMSNorm + int8 rows -> Q4_1 gate, up -> SwiGLU).

    python benchmarks/proof_cpu.py [-k 2048] [-n 5632] [-m 8] [-t 2] [--fmt q4_1] [--isa auto]

Counts 2 * m * n * k multiply-adds (gate and up). The bar at m = 8 on two threads is 250 G/s.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from proof_program import inputs, proof_program

from speccc.ir.plan import Plan, PlanBuf, Role
from speccc.passes.plan_memory import Arena
from speccc.runtime.aligned import aligned
from speccc.runtime.devices.cpu import CpuStep
from speccc.targets.cpu.isa import by_name
from speccc.targets.cpu.target import CpuTarget

BAR = 250.0


def cpu_name() -> str:
    """The model name Linux reports, or the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} threads)" if names else platform.machine()


def measure(args: argparse.Namespace) -> list[float]:
    """Seconds of one call, by round."""
    p = proof_program(args.k, args.n, args.fmt)
    plan = Plan("step", (p.m,), tuple(PlanBuf(b, Role.STATE) for b in p.kernel.bufs), (p.kernel,))
    built = CpuTarget(by_name(args.isa)).compile(plan, Arena({}, 0), {p.m: args.m})
    arrays = []
    for b, values in inputs(p, args.m).items():
        arrays.append((p.kernel.bufs.index(b), aligned(values.shape, values.dtype)))
        arrays[-1][1][...] = values
    given = [a for _, a in sorted(arrays, key=lambda pair: pair[0])]
    kinds = {"f32": np.float32, "i8": np.int8, "i32": np.int32}
    given.append(aligned((1,), np.float32))
    given += [aligned((args.t * n,), kinds[t]) for t, n in built.signature.scratch.items()]
    step = CpuStep(np.frombuffer(built.library, np.uint8), "step", given)
    step([args.m], args.t)
    out = []
    for _ in range(args.rounds):
        begun = time.perf_counter()
        for _ in range(args.calls):
            step([args.m], args.t)
        out.append((time.perf_counter() - begun) / args.calls)
    return out


def main() -> int:
    """Prints the median rate; exit code 1 when it is below the bar at the bar's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    for flag, default in (("k", 2048), ("n", 5632), ("m", 8), ("t", 2)):
        parser.add_argument(f"-{flag}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--fmt", default="q4_1")
    parser.add_argument("--isa", default="auto")
    args = parser.parse_args()
    seconds = measure(args)
    rates = sorted(2 * args.m * args.n * args.k / s / 1e9 for s in seconds)
    print(f"{cpu_name()}, {by_name(args.isa).name}, {args.t} threads")
    print(f"{args.fmt} k={args.k} n=2x{args.n} m={args.m}: median {statistics.median(rates):.0f}")
    print(f"G multiply-adds/s of {args.rounds} rounds; {rates[0]:.0f} to {rates[-1]:.0f}")
    judged = args.m == 8 and args.t == 2 and args.fmt == "q4_1"
    return int(judged and statistics.median(rates) < BAR)


if __name__ == "__main__":
    sys.exit(main())
