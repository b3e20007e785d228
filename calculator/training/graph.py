"""What a tape writes down with: kinds of rows, storages, tensors, weights, operations and checkpointed stretches.

Sources: PyTorch 2.14 ``torch/csrc/autograd``, ``torch/utils/checkpoint.py``; torchtitan
``distributed/activation_checkpoint.py`` (the operators that a selection keeps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calculator.training.tape import Tape

ONE: Final = 0
"""A size that depends on neither micro-batch nor length (weights, their gradients)."""
SEQ: Final = 1
"""Length of a sequence."""
TOKENS: Final = 2
"""Micro-batch x length."""
SCORES: Final = 3
"""Micro-batch x length x length (attention matrices)."""
SEQ_SQUARED: Final = 4
"""Length x length."""
BATCH: Final = 5
PADDED: Final = 6
"""Micro-batch x (length + 1): labels padded by one."""
SHIFTED: Final = 7
"""Micro-batch x (length - 1): logits without the last position."""
SHARD: Final = 8
"""Tokens over the tensor-parallel group: activations under sequence parallelism."""
CHUNK: Final = 9
"""Tokens that a chunked loss works on at once."""
ROUTED: Final = 10
"""Tokens that one expert gets under an even routing."""
TILE: Final = 11
"""Tokens of a tile of a tiled MLP."""
ROW_KINDS: Final = 12

ITEM_BYTES: Final = {"complex64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int64": 8, "int32": 4, "bool": 1, "int8": 1}

FORWARD, RECOMPUTE, BACKWARD = "forward", "recompute", "backward"


class Storage:
    """One allocation. ``handles`` counts the tensors that refer to it; ``role`` is what it turned out to be."""

    __slots__ = ("handles", "ident", "phase", "role", "rows", "tape", "width_bytes")

    def __init__(self, tape: Tape | None, ident: int, rows: int, width_bytes: int, phase: str, role: str) -> None:
        self.tape = tape
        self.ident = ident
        self.rows = rows
        self.width_bytes = width_bytes
        self.phase = phase
        self.role = role
        self.handles = 0


class Tensor:
    """A view of a storage. ``heads_first`` is the order of its dimensions, ``heads_first_memory`` that of its bytes.
    ``origin``: the share that it was gathered from, which backward keeps in its place; ``narrow``: its 8-bit cast,
    which several products of the same input share."""

    __slots__ = (
        "dtype", "heads_first", "heads_first_memory", "narrow", "node", "origin", "param", "rows", "slot", "storage",
        "width",
    )  # fmt: skip

    def __init__(
        self,
        storage: Storage,
        rows: int,
        width: int,
        dtype: str,
        *,
        node: Node | None = None,
        slot: int = 0,
        heads_first: bool = False,
        heads_first_memory: bool = False,
        param: Param | None = None,
    ) -> None:
        self.storage = storage
        self.rows = rows
        self.width = width
        self.dtype = dtype
        self.node = node
        self.slot = slot
        self.heads_first = heads_first
        self.heads_first_memory = heads_first_memory
        self.param = param
        self.origin: Tensor | None = None
        self.narrow: Tensor | None = None
        storage.handles += 1

    def __del__(self) -> None:
        storage = self.storage
        storage.handles -= 1
        if storage.handles == 0 and storage.tape is not None:
            storage.tape.release(storage)

    @property
    def needs_grad(self) -> bool:
        return self.node is not None

    def alias(self, **changes: bool) -> Tensor:
        """Another tensor over the same storage, outside the graph."""
        other = Tensor(self.storage, self.rows, self.width, self.dtype)
        other.heads_first = changes.get("heads_first", self.heads_first)
        other.heads_first_memory = changes.get("heads_first_memory", self.heads_first_memory)
        other.param = self.param
        return other


class Param:
    """A weight: it exists before the step, so the tape writes nothing for it but its gradient. ``waiting``: a tied
    weight's gradient from its other use, which the engine adds out of place unless a cast made it
    (``adds_in_place``)."""

    __slots__ = ("adds_in_place", "dims", "grad", "grad_exists", "name", "tensor", "waiting")

    def __init__(
        self,
        name: str,
        elements: int,
        dtype: str,
        trainable: bool,
        grad_exists: bool = False,
        dims: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.dims = dims or (elements,)
        self.grad: Tensor | None = None
        self.grad_exists = grad_exists
        self.waiting: Tensor | None = None
        self.adds_in_place = True
        self.tensor = Tensor(
            Storage(None, -1, ONE, elements * ITEM_BYTES[dtype], "", "parameters"), ONE, elements, dtype
        )
        self.tensor.param = self
        if trainable:
            self.tensor.node = Node("accumulate", LAST, [], None, 1)
            self.tensor.node.target = self


LAST: Final = 1 << 62
Backward = Callable[[list[Tensor], list["Tensor | None"]], list["Tensor | None"]]


class Frame:
    """A checkpointed stretch: what it takes to run it again, how many tensors its operations saved, and the outputs
    that a selection keeps (``outputs``), by which recomputation skips the operation. ``products``: how many products
    with weights have run."""

    __slots__ = ("again", "count", "kept", "outputs", "products", "recomputed", "selects")

    def __init__(self, again: Callable[[], object], kept: list[Tensor], selects: bool = False) -> None:
        self.again = again
        self.kept = kept
        self.count = self.products = 0
        self.recomputed: list[Tensor | None] | None = None
        self.selects = selects
        self.outputs: list[Tensor] = []

    def keeps(self, product: bool) -> bool:
        """torchtitan's per-operator list: attention, and every second product, beginning with the first."""
        self.products += product
        return self.selects and (not product or self.products % 2 == 1)


class Node:
    """An operation in the graph. ``saved`` are the tensors that its derivative needs, ``role`` what those that its
    backward makes turn out to be ("" where its place in the step decides)."""

    __slots__ = (
        "backward", "buffer", "edges", "frame", "name", "pending", "positions", "role", "saved", "seq", "target",
    )  # fmt: skip

    def __init__(
        self, name: str, seq: int, edges: list[tuple[Node, int] | None], backward: Backward | None, outputs: int
    ) -> None:
        self.name = name
        self.seq = seq
        self.edges = edges
        self.backward = backward
        self.buffer: list[Tensor | None] = [None] * outputs
        self.pending = 0
        self.saved: list[Tensor] = []
        self.frame: Frame | None = None
        self.positions: list[int] = []
        self.target: Param | None = None
        self.role = ""

    def needs(self, index: int) -> bool:
        return self.edges[index] is not None
