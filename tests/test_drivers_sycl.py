"""The SYCL driver for real: a whole model on Intel's CPU device, in a process of its own.

OpenCL reads where its drivers are when it is first loaded, so the device is chosen by environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cpu_rig import Spec, compiled, model_file, same_bits
from emulation.require import require
from emulation.sycl_cpu import find_driver
from models import Tiny
from test_numerics import tokens_of

SPEC = Spec(Tiny(seed=2, hidden=32, heads=2, kv_heads=1, ffn=64), "q4_1")


def test_a_model_on_intels_cpu_device_has_the_cpus_bits() -> None:
    require("sycl")
    done = subprocess.run(
        [sys.executable, "-c", "import test_drivers_sycl as t; t.compare()"],
        env=dict(os.environ, OCL_ICD_FILENAMES=str(find_driver())),
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "a prompt, a tree, a step: equal"


def compare() -> None:
    """What the child does: AssertionError when anything differs."""
    from speccc.emit import EmitOptions, read_model
    from speccc.runtime.devices.gpu_session import GpuSession
    from speccc.runtime.devices.gpu_step import Code
    from speccc.runtime.devices.launch_plan import read_launch_plan
    from speccc.runtime.devices.sycl import SyclDriver
    from speccc.targets.devices import profile
    from speccc.targets.launch_plan import document
    from speccc.targets.sycl.target import SyclTarget
    from speccc.targets.sycl_build import Form

    with tempfile.TemporaryDirectory() as folder:
        front = read_model(model_file(SPEC, Path(folder)), EmitOptions(SPEC.kv), lambda *at: None)
    target = SyclTarget(profile("sycl:bmg"), Form.PORTABLE)
    rendered = target.render(front.plan, front.arena, front.bounds)
    build = target.stages()["spv"]
    codes = {s.name: Code(build(s), s.entry) for s in rendered.sources}
    model = compiled(SPEC)
    weights, vectors = (
        np.frombuffer(model._entries.data[n], np.uint8) for n in ("weights", "vectors")
    )
    plan = read_launch_plan(document(rendered), "launch-plan.json")
    driver = SyclDriver("opencl:cpu")
    ours = GpuSession(
        model._spec, driver, plan, codes, weights, vectors.view(np.float32), context=48
    )
    theirs = model.session(context=48)
    tokens = tokens_of(SPEC.tiny, 18)
    assert same_bits(ours.forward(tokens[:7]), theirs.forward(tokens[:7])), "a prompt"
    for s in (ours, theirs):
        s.pick(tokens[7:12], parents=[-1, 0, 0, 2, 3])
        s.keep([0, 2, 3, 4])
    assert same_bits(ours.pick(tokens[12:15]), theirs.pick(tokens[12:15])), "a step after a tree"
    assert same_bits(ours.forward(tokens[15:17]), theirs.forward(tokens[15:17])), "a step"
    ours.close()
    print("a prompt, a tree, a step: equal")
