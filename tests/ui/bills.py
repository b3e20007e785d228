"""Bills made by hand, for views and charts that need no engine."""

from calculator.bill import Bill, Item, Layer, Range, TimePoint
from calculator.sources import Source
from calculator.text import text
from calculator.units import GIB

SOURCE = Source(title="Written by hand", url="https://example.org/source")


def item(key: str, gib: float, layer: Layer = "tensor", spread: float = 0.0, highest: float | None = None) -> Item:
    size = round(gib * GIB)
    return Item(
        key=key, bytes=size, max_bytes=round((highest or gib) * GIB), low=round(size * (1 - spread)),
        high=round(size * (1 + spread)), layer=layer, phases=("forward",), basis="computed", source=SOURCE,
        formula=text("training.item.inputs", tokens_count=8),
    )  # fmt: skip


def bill(*items: Item, capacity_gib: float = 80.0) -> Bill:
    def total(*layers: str) -> Range:
        chosen = [i for i in items if i.layer in layers]
        return Range(
            value=sum(i.bytes for i in chosen), low=sum(i.low for i in chosen), high=sum(i.high for i in chosen)
        )

    process = total("tensor", "slack", "process")
    capacity = round(capacity_gib * GIB)
    return Bill(
        items=items, phases=(), peak_phase="backward", allocated=total("tensor"), reserved=total("tensor", "slack"),
        process=process, need=process, capacity_bytes=capacity,
        verdict="fits" if process.high <= capacity else "tight" if process.low <= capacity else "does_not_fit",
    )  # fmt: skip


def training_bill(capacity_gib: float = 80.0) -> Bill:
    return bill(
        item("parameters", 15), item("gradients", 15), item("optimizer_states", 30), item("checkpoints", 0, highest=2),
        item("logits_loss", 2.5), item("slack", 4, "slack", 0.5), item("context", 0.5, "process", 0.2),
        capacity_gib=capacity_gib,
    )  # fmt: skip


def point(phase: str, **gib: float) -> TimePoint:
    items = {key: round(size * GIB) for key, size in gib.items()}
    return TimePoint(phase=phase, label=text("training.stage.load"), items=items)


STEP = (
    point("load", parameters=15, optimizer_states=30),
    point("forward", parameters=15, optimizer_states=30, checkpoints=1),
    point("forward", parameters=15, optimizer_states=30, checkpoints=2),
    point("loss", parameters=15, optimizer_states=30, checkpoints=2, logits_loss=5),
    point("backward", parameters=15, optimizer_states=30, gradients=15, logits_loss=2.5),
    point("optimizer", parameters=15, optimizer_states=30, gradients=15),
)
