"""The program behind `sycl_cpu`: kernels on Intel's CPU device, told what to do on stdin.

A request is a line of JSON and `bytes` bytes after it; so is the reply. Buffers stay here between
requests. Errors are replies; a kernel that hangs is the caller's to kill. Arguments are further
options of the device's compiler.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import dpctl
import dpctl.memory
import dpctl.program
import numpy as np

# Quotients and roots are part of the bits.
OPTIONS = " ".join(("-cl-fp32-correctly-rounded-divide-sqrt", *sys.argv[1:]))


class Device:
    """The queue, what was built, and the buffers."""

    def __init__(self) -> None:
        self.queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
        self.kernels: dict[str, Any] = {}
        self.buffers: dict[str, tuple[Any, int]] = {}

    def put(self, request: dict[str, Any], data: bytes) -> bytes:
        """A buffer with these contents."""
        memory = dpctl.memory.MemoryUSMDevice(max(1, len(data)), queue=self.queue)
        if data:
            memory.copy_from_host(bytearray(data))
        self.buffers[request["name"]] = memory, len(data)
        return b""

    def get(self, request: dict[str, Any], data: bytes) -> bytes:
        """A buffer's contents."""
        memory, size = self.buffers[request["name"]]
        return bytes(memory.copy_to_host())[:size]

    def build(self, request: dict[str, Any], data: bytes) -> bytes:
        """SPIR-V made ready to run under the caller's name for it."""
        program = dpctl.program.create_program_from_spirv(self.queue, data, OPTIONS)
        self.kernels[request["key"]] = program.get_sycl_kernel(request["entry"])
        return b""

    def run(self, request: dict[str, Any], data: bytes) -> bytes:
        """One launch, waited for."""
        memories = [self.buffers[name][0] for name in request["buffers"]]
        sizes = []
        if request["scalars"]:
            sizes = [dpctl.memory.MemoryUSMDevice(4 * len(request["scalars"]), queue=self.queue)]
            sizes[0].copy_from_host(np.array(request["scalars"], np.int32).view(np.uint8))
        local, groups = request["local"], request["groups"]
        kernel = self.kernels[request["key"]]
        self.queue.submit(kernel, memories + sizes, [local * groups], [local]).wait()
        return b""

    def about(self, request: dict[str, Any], data: bytes) -> bytes:
        """The device's sub-group sizes and name."""
        device = self.queue.sycl_device
        told = {"name": device.name, "subgroups": list(device.sub_group_sizes)}
        return json.dumps(told).encode()


def main() -> None:
    """Serve until stdin ends."""
    device = Device()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while line := requests.readline():
        request = json.loads(line)
        data = requests.read(request["bytes"])
        try:
            reply, error = getattr(device, request["op"])(request, data), None
        except Exception as raised:
            reply, error = b"", f"{type(raised).__name__}: {raised}"
        replies.write(json.dumps({"bytes": len(reply), "error": error}).encode() + b"\n" + reply)
        replies.flush()


if __name__ == "__main__":
    main()
