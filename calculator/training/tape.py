"""A tape that runs a layer's description on sizes alone and writes down what is allocated and released, and when.

A layer is described once, as its forward computation over the operations of ``calculator.training.ops``. The tape keeps
PyTorch's rules: an operation saves for backward what its derivative needs; a tensor lives as long as something refers
to it (a local name, a saved-for-backward slot, a gradient buffer), so Python's own reference counts decide when a
release is written; backward visits the operations in the order in which the autograd engine does and adds gradients
that meet in place where the engine would.

No number is computed here: a size stays the product of a row count (``ONE``, ``TOKENS``, ...) and a width in bytes, so
one recording serves every micro-batch and length.

Sources: PyTorch 2.14 ``torch/csrc/autograd`` (engine.cpp, input_buffer.cpp, accumulate_grad.h),
``tools/autograd/derivatives.yaml`` and ``torch/utils/checkpoint.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from calculator.training.graph import (
    BACKWARD,
    BATCH,
    CHUNK,
    FORWARD,
    ITEM_BYTES,
    ONE,
    PADDED,
    RECOMPUTE,
    ROUTED,
    ROW_KINDS,
    SCORES,
    SEQ,
    SEQ_SQUARED,
    SHARD,
    SHIFTED,
    TILE,
    TOKENS,
    Backward,
    Frame,
    Node,
    Param,
    Storage,
    Tensor,
)

__all__ = [
    "BACKWARD",
    "BATCH",
    "CHUNK",
    "FORWARD",
    "ITEM_BYTES",
    "ONE",
    "PADDED",
    "RECOMPUTE",
    "ROUTED",
    "ROW_KINDS",
    "SCORES",
    "SEQ",
    "SEQ_SQUARED",
    "SHARD",
    "SHIFTED",
    "TILE",
    "TOKENS",
    "Backward",
    "Frame",
    "Node",
    "Param",
    "Storage",
    "Tape",
    "Tensor",
]

Results = TypeVar("Results")


class _RecomputedEnoughError(Exception):
    """Recomputation has made the last tensor that backward asks for."""


class Tape:
    """Records one stretch of the step. ``events`` are (storage, +1 or -1) in order; ``node_held`` are storages that
    nodes of the graph hold as attributes, which backward does not clear."""

    def __init__(self, *, autocast: str | None = None, kernel_scratch: bool = True) -> None:
        self.storages: list[Storage] = []
        self.events: list[tuple[int, int]] = []
        self.node_held: set[int] = set()
        self.phase = FORWARD
        self.role = ""
        self._back_role = ""
        self.autocast = autocast
        self.kernel_scratch = kernel_scratch
        self.recording = True
        self.cast_cache: dict[int, Tensor] = {}
        self.gradients: list[Tensor] = []
        self.graph_leaves: list[Tensor] = []
        self._seq = 0
        self._frames: list[Frame] = []
        self._again: Frame | None = None

    # ---------------------------------------------------------------------------------------------- storages
    def new(self, rows: int, width: int, dtype: str, *, like: Tensor | None = None) -> Tensor:
        """A new tensor of ``rows`` x ``width`` elements, laid out like ``like``."""
        storage = Storage(self, len(self.storages), rows, width * ITEM_BYTES[dtype], self.phase, self.role)
        self.storages.append(storage)
        if storage.width_bytes:
            self.events.append((storage.ident, 1))
        tensor = Tensor(storage, rows, width, dtype)
        if like is not None:
            tensor.heads_first = like.heads_first
            tensor.heads_first_memory = like.heads_first_memory
        return tensor

    def outside(self, rows: int, width: int, dtype: str, role: str) -> Tensor:
        """A tensor that another stretch made: only its release is written."""
        storage = Storage(self, len(self.storages), rows, width * ITEM_BYTES[dtype], "outside", role)
        self.storages.append(storage)
        return Tensor(storage, rows, width, dtype)

    def release(self, storage: Storage) -> None:
        if storage.width_bytes:
            self.events.append((storage.ident, -1))

    @contextmanager
    def label(self, role: str, *, backward: bool = False) -> Iterator[None]:
        """What is made inside counts as ``role``; with ``backward``, so does what the backward of its operations
        makes."""
        before = self.role, self._back_role
        self.role, self._back_role = role, role if backward else self._back_role
        try:
            yield
        finally:
            self.role, self._back_role = before

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    # ------------------------------------------------------------------------------------------------- graph
    def leaf(self, tensor: Tensor) -> Tensor:
        """Make ``tensor`` an end of the graph that collects its gradient."""
        self._seq += 1
        tensor.node = Node("leaf", self._seq, [], None, 1)
        return tensor

    def graph_leaf(self, tensor: Tensor) -> None:
        """A leaf that a layer makes for itself: the graph holds it, and its gradient, until backward has ended."""
        self.leaf(tensor)
        if self.recording and self._again is None and tensor.node is not None:
            kept = tensor.alias()
            kept.node = tensor.node
            self.graph_leaves.append(kept)

    def drop_graph(self) -> None:
        """Backward has ended and the loss is gone: so are the leaves that only the graph held."""
        for leaf in self.graph_leaves:
            if leaf.node is not None:
                leaf.node.buffer = [None]
        self.graph_leaves.clear()

    def record(
        self, name: str, inputs: Sequence[Tensor], backward: Backward, saves: Sequence[Tensor], outputs: int = 1
    ) -> Node | None:
        """Add an operation to the graph if one of its inputs needs a gradient. Call it before making the result."""
        if not self.recording or not any(t.needs_grad for t in inputs):
            return None
        self._seq += 1
        edges = [(t.node, t.slot) if t.node is not None else None for t in inputs]
        node = Node(name, self._seq, edges, backward, outputs)
        node.role = self._back_role
        self.save(node, saves)
        return node

    def save(self, node: Node | None, tensors: Sequence[Tensor]) -> None:
        if node is None:
            return
        for tensor in tensors:
            if self._again is not None:
                self._keep_again(self._again, tensor)
            elif self._frames:
                frame = self._frames[-1]
                node.frame = frame
                node.positions.append(frame.count)
                frame.count += 1
            else:
                node.saved.append(tensor.alias())

    @staticmethod
    def _keep_again(frame: Frame, tensor: Tensor) -> None:
        assert frame.recomputed is not None
        frame.recomputed.append(tensor.alias())
        if len(frame.recomputed) == frame.count:
            raise _RecomputedEnoughError

    def attach(self, tensor: Tensor, node: Node | None, slot: int = 0) -> Tensor:
        tensor.node = node
        tensor.slot = slot
        return tensor

    # ------------------------------------------------------------------------------------------ checkpointing
    def output(self, rows: int, width: int, dtype: str, *, product: bool = False) -> Tensor:
        """The output of an operation that a selection may keep: new, or the one kept where it is run again."""
        frame = self._again or (self._frames[-1] if self._frames else None)
        if frame is None or not frame.keeps(product):
            return self.new(rows, width, dtype)
        if self._again is not None and frame.outputs:
            return frame.outputs.pop(0)
        out = self.new(rows, width, dtype)
        if self._again is None:
            frame.outputs.append(out.alias())
        return out

    def checkpoint(self, run: Callable[[Tensor], Tensor], x: Tensor, selects: str = "") -> Tensor:
        """Run a stretch without keeping what it saves; its input stays, and the first tensor asked for in backward
        runs it again, as far as the last tensor that is needed. ``selects``: operators' outputs are kept as well, or
        (``needed``) those of them that backward reads, which leaves out the last product's."""
        kept = x.alias()
        kept.node, kept.slot = x.node, x.slot

        def again() -> None:
            run(kept)

        frame = Frame(again, [kept], bool(selects))
        self._frames.append(frame)
        try:
            return run(x)
        finally:
            self._frames.pop()
            frame.products = 0
            if selects == "needed":
                del frame.outputs[-1:]

    def checkpoint_many(self, run: Callable[[Tensor], Results], x: Tensor) -> Results:
        """``checkpoint`` for a stretch that returns several tensors."""
        kept = x.alias()
        kept.node, kept.slot = x.node, x.slot

        def again() -> None:
            run(kept)

        self._frames.append(Frame(again, [kept]))
        try:
            return run(x)
        finally:
            self._frames.pop()

    def checkpoint_reentrant(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The older form: forward without a graph; in backward the whole stretch runs again on a detached input and
        its own backward inside."""
        saved = x.alias()

        def backward(_: list[Tensor], grads: list[Tensor | None]) -> list[Tensor | None]:
            before, self.phase, self.recording = self.phase, RECOMPUTE, True
            inner = self.leaf(saved.alias())
            with self.autocast_region():
                out = run(inner)
            self.phase = before
            leaf, root = inner.node, out.node
            assert leaf is not None
            assert root is not None
            self.run_backward([(root, out.slot, grads[0])])
            return [leaf.buffer[0]]

        node = self.record("checkpoint", [x], backward, [])
        with self.no_grad():
            out = run(x)
        return self.attach(out, node)

    @contextmanager
    def autocast_region(self) -> Iterator[None]:
        """Casts of weights are cached until the outermost autocast block ends."""
        outer, self.cast_cache = self.cast_cache, {}
        try:
            yield
        finally:
            self.cast_cache = outer

    def _recompute(self, frame: Frame) -> None:
        before = self.phase, self.recording, self._again, self.role
        self.phase, self.recording, self._again = RECOMPUTE, True, frame
        frame.recomputed = []
        try:
            with self.autocast_region():
                frame.again()
        except _RecomputedEnoughError:
            pass
        self.phase, self.recording, self._again, self.role = before

    def _unpack(self, node: Node) -> list[Tensor]:
        if node.frame is None:
            saved, node.saved = node.saved, []
            return saved
        if not node.positions:
            return []
        if node.frame.recomputed is None:
            self._recompute(node.frame)
        store = node.frame.recomputed
        assert store is not None
        result = []
        for position in node.positions:
            tensor = store[position]
            assert tensor is not None
            store[position] = None
            result.append(tensor)
        return result

    # ---------------------------------------------------------------------------------------------- backward
    def run_backward(self, roots: list[tuple[Node, int, Tensor | None]]) -> None:
        """The autograd engine: of the operations whose gradients are complete, the one recorded last goes first."""
        self._count([node for node, _, _ in roots])
        ready: list[tuple[int, int, Node]] = []
        pushed = count()
        for node, slot, grad in roots:
            node.buffer[slot] = grad
            if node.pending == 0:
                heapq.heappush(ready, (-node.seq, next(pushed), node))
        roots.clear()
        grad = None
        while ready:
            node = heapq.heappop(ready)[2]
            if node.target is not None:
                self._accumulate_param(node)
                continue
            if node.backward is None:
                continue
            out = self._apply(node)
            for index, edge in enumerate(node.edges):
                if edge is None:
                    continue
                grad, out[index] = out[index], None
                following, slot = edge
                if grad is not None:
                    self._add(following, slot, grad)
                grad = None
                following.pending -= 1
                if following.pending == 0:
                    heapq.heappush(ready, (-following.seq, next(pushed), following))
            node.edges = []

    def _apply(self, node: Node) -> list[Tensor | None]:
        assert node.backward is not None
        saved = self._unpack(node)
        grads, node.buffer = node.buffer, []
        before, self.role = self.role, node.role or self.role
        out = node.backward(saved, grads)
        self.role = before
        node.backward = None
        node.frame = None
        return out

    @staticmethod
    def _count(roots: list[Node]) -> None:
        seen = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            for edge in node.edges:
                if edge is not None:
                    edge[0].pending += 1
                    stack.append(edge[0])

    def _add(self, node: Node, slot: int, grad: Tensor) -> None:
        there = node.buffer[slot]
        if there is None:
            node.buffer[slot] = grad
        elif there.storage.handles > 1 or (node.target is not None and not node.target.adds_in_place):
            node.buffer[slot] = self.new(grad.rows, grad.width, grad.dtype, like=there)
            if node.target is not None:
                node.target.adds_in_place = True  # nobody else holds the sum, so a third use is added into it

    def _accumulate_param(self, node: Node) -> None:
        param, grad = node.target, node.buffer[0]
        assert param is not None
        node.buffer = [None]
        if grad is None:
            return
        if param.waiting is not None:
            grad = param.waiting if param.adds_in_place else self.new(grad.rows, grad.width, grad.dtype)
            param.waiting = None
        if param.grad_exists:
            return
        if param.grad is None:
            grad.storage.role = "gradients"
            param.grad = grad
            self.gradients.append(grad)
