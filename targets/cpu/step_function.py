"""Plan -> the function that runs a whole step: one parallel launch, a barrier after each kernel."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from speccc.ir.plan import Loop, Plan, Role, Step
from speccc.ir.tile import Kernel
from speccc.passes.plan_memory import Arena
from speccc.targets.cpu import tir
from speccc.targets.cpu.built import Signature
from speccc.targets.cpu.fetch_ahead import render_fetch, streams
from speccc.targets.cpu.kernel_function import SCRATCH_TYPES, KernelFunction
from speccc.targets.cpu.render_expr import Place, Scope
from speccc.targets.cpu.render_tile import first_unit
from speccc.targets.cpu.tir import Block, Node

Next = tuple[Kernel, Scope] | None
"""The kernel that runs after a phase, and what its variables are then."""


def step_function(
    plan: Plan, arena: Arena, kernels: Mapping[Kernel, KernelFunction]
) -> tuple[tirx.PrimFunc, Signature]:
    """The TensorIR function named after the plan, which calls the kernels by their symbols."""
    return _StepFunction(plan, arena, kernels).build()


class _StepFunction:
    """Builds the function: parameters, then calls inside one parallel launch."""

    def __init__(self, plan: Plan, arena: Arena, kernels: Mapping[Kernel, KernelFunction]) -> None:
        self.plan, self.arena, self.kernels = plan, arena, kernels
        self.scope = Scope()
        self.params: list[Node] = []
        self.workers = tirx.Var("workers", "int64")
        self.scratch = {
            t: max((k.scratch.get(t, 0) for k in kernels.values()), default=0)
            for t in SCRATCH_TYPES
        }
        self.scratch_buf: dict[str, Node] = {}

    def build(self) -> tuple[tirx.PrimFunc, Signature]:
        external = [b.buf for b in self.plan.bufs if b.role is not Role.ACTIVATION]
        for buf in external:
            array = self._array(buf.name, buf.dtype.name)
            self.scope.places[buf] = Place(array, tir.index(0))
        arena = self._array("arena", "f32")
        for buf, offset in self.arena.offsets.items():
            self.scope.places[buf] = Place(arena, tir.index(offset))
        for name in SCRATCH_TYPES:
            self.scratch_buf[name] = self._array(f"scratch_{name}", name)
        for v in self.plan.sizes:
            self.scope.variables[v] = tirx.Var(v.name, "int64")
            self.params.append(self.scope.variables[v])
        self.params.append(self.workers)
        body = self._steps(self.plan.body, self.scope)
        launch = tirx.AttrStmt(tir.index(0), "pragma_parallel_launch_point", tir.index(1), body)
        func = tirx.PrimFunc(self.params, launch).with_attr("global_symbol", self.plan.name)
        names = tuple(b.name for b in external)
        sizes = tuple(v.name for v in self.plan.sizes)
        signature = Signature(names, self.arena.elements, self.scratch, sizes)
        return func.with_attr("s_tir", True), signature

    def _array(self, name: str, dtype: str) -> Node:
        size = tirx.Var(f"{name}_size", "int64")
        buffer = tirx.decl_buffer((size,), tir.TVM_NAMES[dtype], name)
        self.params.append(buffer)
        return buffer

    def _steps(self, body: tuple[Step, ...], scope: Scope, after: Next = None) -> Node:
        """The steps; `after` is the kernel that follows them, and where."""
        out = []
        for n, step in enumerate(body):
            follows = _first(body[n + 1], scope) if n + 1 < len(body) else after
            if isinstance(step, Loop):
                inner, ahead = scope.child(), scope.child()
                inner.variables[step.var] = tir.loop_var(step.var.name)
                ahead.variables[step.var] = inner.variables[step.var] + tir.index(1)
                # After the last trip this is what lies behind the last layer: fetched in vain.
                steps = self._steps(step.body, inner, _first(step.body[0], ahead))
                out.append(tir.serial(inner.variables[step.var], tir.index(step.extent), [steps]))
            else:
                out.append(self._phase(step, scope, follows))
        return tir.seq(out)

    def _phase(self, kernel: Kernel, scope: Scope, follows: Next) -> Node:
        worker = tirx.Var(f"{kernel.name}_worker", "int64")
        block = Block()
        block.add(self._call(self.kernels[kernel], scope, worker))
        if follows is not None:
            self._fetch(*follows, worker, block)
        loop = tirx.For(
            worker, tir.index(0), self.workers, tirx.ForKind.PARALLEL, tir.seq(block.statements)
        )
        barrier = "pragma_parallel_barrier_when_finish"
        return tirx.AttrStmt(tir.index(0), barrier, tir.index(1), loop)

    def _fetch(self, kernel: Kernel, scope: Scope, worker: Node, block: Block) -> None:
        deal = self.kernels[kernel].deal
        for stream in streams(kernel):
            render_fetch(
                stream, scope, block, lambda extent: first_unit(deal, worker, self.workers, extent)
            )

    def _call(self, function: KernelFunction, scope: Scope, worker: Node) -> Node:
        places = [scope.places[buf] for buf in function.bufs]
        args = [_address(place.buffer, place.base) for place in places]
        for t in function.scratch:
            at = worker * tir.index(self.scratch[t])
            args.append(_address(self.scratch_buf[t], at))
        args += [scope.variables[v] for v in function.scalars]
        call = tirx.call_extern("void", function.symbol, *args, worker, self.workers)
        return tirx.Evaluate(call)


def _first(step: Step, scope: Scope) -> Next:
    """The kernel a step begins with; a loop begins at 0."""
    while isinstance(step, Loop):
        scope = scope.child()
        scope.variables[step.var] = tir.index(0)
        step = step.body[0]
    return step, scope


def _address(buffer: Node, at: Node) -> Node:
    return tirx.address_of(tirx.BufferLoad(buffer, [at]))
