"""How good the tuner's order is: all schedules of one kernel, measured once, then replayed.

    python benchmarks/tune_prior.py MODEL --kernel ffn_gate_up --recording space.jsonl

The first run measures every schedule of the kernel inside the whole step (minutes) and writes the
recording, an export of the tuning cache; later runs only replay it. Printed: the rank correlation
of the prior with what was measured; the mean time over the default's of its first n schedules; and
the best that the first n candidates reach, by the search and in random order (the exact mean over
all orders).
"""

from __future__ import annotations

import argparse
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import correlation, mean

from speccc.autotune.cache_export import json_lines
from speccc.autotune.cache_import import import_file
from speccc.autotune.cpu_job import SUITE
from speccc.autotune.measure import Worker
from speccc.autotune.record import Outcome, Record
from speccc.autotune.replay import progress, random_progress, recorded
from speccc.autotune.search import Search
from speccc.autotune.step_space import DEFAULT, StepSpace
from speccc.autotune.tuner import Problem, records
from speccc.driver import CompileOptions, tunable
from speccc.tuning import Subject, job_of, problem_of

SHOWN = (1, 2, 3, 5, 8, 12, 20, 40)


def record(subject: Subject, problem: Problem, kernel: str, seconds: float) -> list[Record]:
    """Every schedule of a kernel, timed for `seconds` each."""
    configs = [DEFAULT, *sorted(set(problem.space.moves(DEFAULT, kernel)) - {DEFAULT}, key=str)]
    made: list[Record] = []
    with (
        tempfile.TemporaryDirectory(prefix="speccc-") as folder,
        job_of(subject, Path(folder)) as job,
        Worker(SUITE, job) as worker,
    ):
        for number, config in enumerate(configs):
            found = worker.measure(config, seconds=seconds, deadline=float("inf"))
            made += records(problem.keys, config, found, "recording", number)
            print(f"\r{number + 1} of {len(configs)}", end="", flush=True)
    print()
    return made


def main() -> None:
    """Records if there is no recording, then replays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--kernel", default="ffn_gate_up")
    parser.add_argument("--recording", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each schedule")
    args = parser.parse_args()
    subject = tunable(args.model, CompileOptions())
    problem = problem_of(subject)
    if not args.recording.exists():
        lines = json_lines(record(subject, problem, args.kernel, args.seconds))
        args.recording.write_text("\n".join(lines) + "\n")
    replay = recorded(import_file(args.recording))
    space = StepSpace({args.kernel: problem.space.kernels[args.kernel]})
    configs, ratios = zip(*replay.ratios().items(), strict=True)
    failed = sum(m.outcome is not Outcome.OK for m in replay.measured.values())
    steps = len(replay.measured)
    ours = progress(Search(space, problem.prior), replay, steps)
    random = random_progress(ratios, steps)
    print(f"{steps} schedules of {args.kernel}, {failed} failed, best {min(ratios):.3f}")
    expected = [problem.prior.ratio(config) for config in configs]
    print(f"rank correlation of prior and time: {correlation(ranks(expected), ranks(ratios)):.2f}")
    print("    n  mean of the prior's first n  best by search  in random order")
    by_prior = [ratio for _, ratio in sorted(zip(expected, ratios, strict=True))]
    for n in (n for n in SHOWN if n <= min(len(ours), len(random))):
        print(f"{n:5}  {mean(by_prior[:n]):27.3f}  {ours[n - 1]:14.3f}  {random[n - 1]:15.3f}")


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value among all, equal ones sharing the mean of theirs."""
    rising = sorted(values)
    return [(bisect_left(rising, v) + bisect_right(rising, v) - 1) / 2 for v in values]


if __name__ == "__main__":
    main()
