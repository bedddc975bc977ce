"""Peak memory of a running session in a fresh process, against the plan its artifact prints.

`python -m speccc.bench.memory ARTIFACT [CONTEXT [THREADS]]` loads the artifact as a program that
embeds the runtime does (PyTorch kept out), fills the context to the last token, and prints one JSON
object. Nothing is subtracted: the interpreter, its packages and the tokenizer are in the peak.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from speccc.errors import SpecccError

GENERATED = 32
"""Tokens that are generated at the end of the full context, greedily, with the drafter."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes: the peak (VmHWM), the plan for this context, and what was resident at each stage."""

    context: int
    threads: int
    peak_bytes: int
    plan_bytes: int
    stages: Mapping[str, int]

    @property
    def ratio(self) -> float:
        """Peak over plan."""
        return self.peak_bytes / self.plan_bytes

    def document(self) -> dict[str, object]:
        """Ready for JSON."""
        return {**asdict(self), "ratio": self.ratio}


def resident(field: str = "VmRSS") -> int | None:
    """This process's resident bytes now, or at most (VmHWM); None where the system hides them."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    text = next(found, None)
    return None if text is None else 1024 * int(text)


def run_full(path: Path, context: int | None, threads: int | None) -> PeakMemory:
    """Runs a session in this process until its context is full."""
    stages = {"python": resident() or 0}
    import speccc
    from speccc.memory_plan import plan_memory

    stages["imports"] = resident() or 0
    model = speccc.load(path)
    stages["load"] = resident() or 0
    session = model.session(context=context, threads=threads)
    stages["session"] = resident() or 0
    prompt = max(1, session.context - GENERATED)
    tokens = [(7 * n) % session.vocab for n in range(prompt)]
    done = model.generate(tokens, session=session, max_tokens=session.context - prompt)
    stages["full"] = resident() or 0
    peak = resident("VmHWM")
    if peak is None or not done.tokens:
        raise SpecccError("this system does not tell a process its peak memory", where="memory")
    weights = int(model.manifest["memory_plan"]["weights"])
    plan = plan_memory(session.spec, weights, session.context, session.threads)
    return PeakMemory(session.context, session.threads, peak, plan.total, stages)


def peak_memory(path: Path, context: int | None = None, threads: int | None = None) -> PeakMemory:
    """The same in a fresh process. SpecccError when it fails.

    Without a context the artifact's own is filled: the one whose plan `compile` prints.
    """
    import subprocess  # a session that is measured does not need it

    command = [sys.executable, "-m", "speccc.bench.memory", str(path), str(context or 0)]
    env = dict(os.environ)
    if threads is not None:
        command.append(str(threads))
        env["TVM_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise SpecccError(last, where="memory")
    told = json.loads(done.stdout.splitlines()[-1])
    told.pop("ratio")
    return PeakMemory(**told)


def main() -> None:
    """Measures what the arguments name."""
    path, context, *rest = sys.argv[1:] + ["0"] * (len(sys.argv) == 2)
    threads = int(rest[0]) if rest else None
    print(json.dumps(run_full(Path(path), int(context) or None, threads).document()))


if __name__ == "__main__":
    main()
