"""Command graphs of SYCL (`sycl_ext_oneapi_graph`): what is submitted once and run many times.

`dpctl` has no words for them, but the runtime that it has loaded exports them as C++ functions, and
its queues' addresses are known. They are called by their symbols, as the C++ ABI of Linux says; a
runtime without one of the symbols, as another version or Windows', counts as one without graphs.
A C++ exception would end the process: nothing is asked of a device that does not say it has them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNTIME = "libsycl.so.9"
CAPI = "libDPCTLSyclInterface.so"
LIMITED_GRAPH = 57
"""`sycl::aspect::ext_oneapi_limited_graph`: graphs whose commands stay as they are."""
_GRAPH = "4sycl3_V13ext6oneapi12experimental6detail24modifiable_command_graph"
_SUBMIT = "4sycl3_V138submit_graph_direct_without_event_impl"
_EXECUTABLE = "RNS0_3ext6oneapi12experimental13command_graphILNS6_11graph_stateE1EEE"
HAS = "_ZNK4sycl3_V16device3hasENS0_6aspectE"
"""bool device::has(aspect) const"""
MAKE = f"_ZN{_GRAPH}C1ERKNS0_5queueERKNS0_13property_listE"
"""modifiable_command_graph(const queue &, const property_list &)"""
BEGIN = f"_ZN{_GRAPH}15begin_recordingERNS0_5queueERKNS0_13property_listE"
"""void begin_recording(queue &, const property_list &)"""
END = f"_ZN{_GRAPH}13end_recordingEv"
"""void end_recording()"""
FINALIZE = f"_ZNK{_GRAPH}8finalizeERKNS0_13property_listE"
"""command_graph<executable> finalize(const property_list &) const"""
SUBMIT = (
    f"_ZN{_SUBMIT}ERKNS0_5queueE{_EXECUTABLE}"
    "NS0_4spanIKNS0_5eventELm18446744073709551615EEERKNS0_6detail13code_locationE"
)
"""void submit_graph_direct_without_event_impl(const queue &, command_graph<executable> &,
span<const event>, const code_location &)"""
POINTER_BYTES = 16
"""Of a `shared_ptr`, all that a graph is, and an event."""
ZEROS = 64
"""Bytes: an empty `property_list` has 32 of them, all zero, and so has a `code_location`."""


class SyclGraphs:
    """Graphs of one queue. A graph is the address of its object."""

    def __init__(self, queue: Any, folder: Path) -> None:
        """`folder` is dpctl's. OSError or AttributeError when the runtime is another one."""
        mode = os.RTLD_NOW | os.RTLD_NOLOAD  # the libraries that dpctl uses, and no others
        runtime = ctypes.CDLL(RUNTIME, mode)
        device = ctypes.c_void_p(queue.sycl_device.addressof_ref())
        self.known = bool(_function(runtime, HAS, ctypes.c_bool)(device, LIMITED_GRAPH))
        self._make, self._begin, self._end, self._finalize, self._submit = (
            _function(runtime, name) for name in (MAKE, BEGIN, END, FINALIZE, SUBMIT)
        )
        self._new = _function(ctypes.CDLL("libstdc++.so.6", mode), "_Znwm", ctypes.c_void_p)
        # It deletes an event, which is a shared_ptr and nothing more; so is a graph.
        self._delete = _function(ctypes.CDLL(str(folder / CAPI), mode), "DPCTLEvent_Delete")
        self._queue = ctypes.c_void_p(queue.addressof_ref())
        self._nothing = (ctypes.c_uint8 * ZEROS)()

    def record(self, submit: Callable[[], None]) -> int:
        """What `submit` gives the queue, as a graph; nothing of it runs."""
        graph = self._object()
        self._make(graph, self._queue, self._nothing)
        try:
            self._begin(graph, self._queue, self._nothing)
            try:
                submit()
            finally:
                self._end(graph)
            made = self._object()
            # A function that returns an object takes the place for it first.
            self._finalize(made, graph, self._nothing)
        finally:
            self._delete(graph)
        return int(made.value or 0)

    def run(self, graph: int) -> None:
        """Submits a graph, behind all that the queue has."""
        nobody, none = ctypes.c_void_p(0), ctypes.c_size_t(0)
        self._submit(self._queue, ctypes.c_void_p(graph), nobody, none, self._nothing)

    def free(self, graph: int) -> None:
        """Gives a graph back that does not run."""
        self._delete(ctypes.c_void_p(graph))

    def _object(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._new(ctypes.c_size_t(POINTER_BYTES)))


def find_graphs(queue: Any, folder: Path) -> SyclGraphs | None:
    """The graphs of a dpctl queue; None when its device or the runtime has none."""
    try:
        graphs = SyclGraphs(queue, folder)
    except (OSError, AttributeError):
        return None
    return graphs if graphs.known else None


def _function(library: ctypes.CDLL, name: str, returns: Any = None) -> Any:
    found = library[name]
    found.restype = returns
    return found
