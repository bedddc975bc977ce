"""SYCL kernels on Intel's OpenCL CPU device, in a process of their own: it may crash or hang.

The wheels `dpctl` and `intel-opencl-rt` bring the device, on processors of other makers too. It
has sub-groups and barriers but no matrix engine: kernels run in their portable form.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.runtime.devices.sycl import find_cpu_driver as find_driver
from speccc.targets.sycl_build import find_sycl_compiler

Array = npt.NDArray[Any]
WORKER = Path(__file__).with_name("sycl_worker.py")


class SyclError(Exception):
    """The worker reported a failure, died, or was killed for being late."""


def has_sycl() -> bool:
    """Whether kernels can be compiled and run here."""
    here = importlib.util.find_spec("dpctl") is not None and find_driver() is not None
    return here and find_sycl_compiler() is not None


class SyclCpu:
    """One worker process: started on entry, ended on exit, useless after it died."""

    def __init__(self, *options: str, timeout_s: float = 120.0) -> None:
        """`timeout_s` bounds each request; `options` are for the device's compiler."""
        self._timeout_s = timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed on exit)
        self._built: set[str] = set()
        self._process = subprocess.Popen(
            (sys.executable, str(WORKER), *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=dict(os.environ, OCL_ICD_FILENAMES=str(find_driver())),
        )

    def __enter__(self) -> SyclCpu:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def about(self) -> Mapping[str, Any]:
        """The device's `name` and its sizes of `subgroups`."""
        told: Mapping[str, Any] = json.loads(self._ask("about"))
        return told

    def put(self, name: str, array: Array) -> None:
        """Make or replace a buffer."""
        self._ask("put", np.ascontiguousarray(array).tobytes(), name=name)

    def get(self, name: str, like: Array) -> Array:
        """A buffer's contents with the type and shape of `like`."""
        return np.frombuffer(self._ask("get", name=name), like.dtype).reshape(like.shape).copy()

    def run(
        self,
        spirv: bytes,
        entry: str,
        buffers: Sequence[str],
        scalars: Sequence[int],
        *,
        groups: int,
        local: int,
    ) -> None:
        """One launch of `groups` work-groups of `local` work-items."""
        key = hashlib.sha256(spirv).hexdigest()
        if key not in self._built:
            self._ask("build", spirv, key=key, entry=entry)
            self._built.add(key)
        launch = {"key": key, "buffers": list(buffers), "scalars": [int(n) for n in scalars]}
        self._ask("run", groups=groups, local=local, **launch)

    def _ask(self, op: str, data: bytes = b"", **request: object) -> bytes:
        late = threading.Timer(self._timeout_s, self._process.kill)
        late.start()
        try:
            return self._answer(op, data, request)
        except (BrokenPipeError, EOFError):
            status = self._process.wait()
            raise SyclError(f"the worker ended with status {status}: {self._tail()}") from None
        finally:
            late.cancel()

    def _answer(self, op: str, data: bytes, request: Mapping[str, object]) -> bytes:
        pipe, replies = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert replies is not None
        head = json.dumps({"op": op, "bytes": len(data), **request}).encode()
        pipe.write(head + b"\n" + data)
        pipe.flush()
        line = replies.readline()
        if not line:
            raise EOFError
        told = json.loads(line)
        reply = replies.read(told["bytes"])
        if told["error"]:
            raise SyclError(told["error"])
        return reply

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace").strip()
