"""Bills, shapes and lists as tables of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text as Styled

from calculator.bill import Bill, HostBill, Range
from calculator.cli.commands import Result
from calculator.cli.pace import Pace
from calculator.errors import CalculatorError, UnknownFamilyError
from calculator.jsonout import once
from calculator.lookup import LoadedModel, load_preset
from calculator.presets import Preset
from calculator.render import catalogue, format_params, render, source_title
from calculator.sources import Source
from calculator.text import Text, Value, text
from calculator.units import Unit, format_bytes

if TYPE_CHECKING:
    from calculator.hardware import Gpu

COLOURS = {"fits": "green", "tight": "yellow", "does_not_fit": "red"}


def once_sources(bill: Bill) -> list[Source]:
    """The sources of the items, each once, in their order."""
    return list(dict.fromkeys(item.source for item in bill.items))


def plain(said: str) -> str:
    """Without what would steer a terminal: names and keys in a sentence are strangers' text."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in said)


class Printer:
    """Writes in one language and unit. Nothing that a person or a file named is read as markup."""

    def __init__(self, console: Console, language: str, unit: Unit) -> None:
        self.console, self.language, self.unit = console, language, unit

    def say(self, id_: str, **values: Value | Text) -> str:
        return self.text(text(id_, **values))

    def text(self, message: Text) -> str:
        return plain(render(message, self.language, self.unit))

    def size(self, amount_bytes: int) -> str:
        return format_bytes(amount_bytes, self.unit)

    def name(self, id_: str) -> str:
        """The name of an item, phase or component; one without a sentence is shown by its key."""
        return self.say(id_) if id_ in catalogue(self.language) else id_.partition(".")[2].replace("_", " ")

    def show(self, *parts: RenderableType) -> None:
        self.console.print(Group(*parts), markup=False, highlight=False)

    # ---------------------------------------------------------------------------------------------- bills

    def bill(self, result: Result) -> None:
        bill = result.bill
        self.show(
            Styled(self.model_line(result.model), style="dim"),
            Styled(self.verdict(result), style=f"bold {COLOURS[bill.verdict]}"),
            "",
            self.items(bill),
            *self.sources(bill),
            self.totals(bill),
            *([self.phases(bill)] if len(bill.phases) > 1 else []),
            *([self.capacity(bill)] if bill.serving is not None else []),
            *([self.pace(result.pace)] if result.pace is not None else []),
            *([self.host(bill.host)] if bill.host is not None and bill.host.notable(bill.capacity_bytes) else []),
        )
        self.assumptions((*result.model.assumptions, *result.assumptions, *bill.assumptions))

    def model_line(self, model: LoadedModel) -> str:
        shape = model.shape
        line = self.say(
            "cli.model",
            name=model.name,
            total_params=shape.parameters.total,
            layer_count=shape.layers,
            dtype=shape.quantization.format if shape.quantization else shape.dtype,
            origin=text(f"cli.origin.{model.origin}", commit=(model.commit or "")[:12]),
        )
        active = shape.parameters.active
        return line if active == shape.parameters.total else f"{line} {self.say('cli.active', active_params=active)}"

    def verdict(self, result: Result) -> str:
        bill, gpu = result.bill, result.gpu
        where = gpu.name if result.plan.n_gpus == 1 else f"{result.plan.n_gpus} × {gpu.name}"
        figures = bill.serving
        kind = "serve" if figures is not None else "train"
        wished = {} if figures is None else {
            "wished_count": figures.wished_requests, "held_count": int(max(figures.requests_at_context, 0)),
        }  # fmt: skip
        line = self.say(
            f"cli.verdict.{kind}.{bill.verdict}",
            where=where,
            need_bytes=bill.need.value,
            low_bytes=bill.need.low,
            high_bytes=bill.need.high,
            capacity_bytes=bill.capacity_bytes,
            spare_bytes=abs(bill.spare_bytes),
            process_bytes=bill.process.value,
            **wished,
        )
        said = (figures.refusal or figures.moved) if figures is not None else None
        return line if said is None else f"{line} {self.text(said)}"

    def items(self, bill: Bill) -> Table:
        whole = sum(item.bytes for item in bill.items if item.layer != "free") or 1
        columns = ("item", "amount", "share", "how", "basis")
        table = self.table(*(self.say(f"cli.column.{c}") for c in columns), right=(1, 2), lines=True)
        for item in bill.items:
            share = "" if item.layer == "free" else f"{item.bytes / whole:.1%}"
            amount = self.size(item.bytes)
            if item.max_bytes != item.bytes:
                amount += "\n" + self.say("cli.most", max_bytes=item.max_bytes)
            how = self.text(item.formula)
            if item.divided_by > 1:
                how += " " + self.say("cli.divided", gpus_count=item.divided_by)
            number = once_sources(bill).index(item.source) + 1
            name = Styled(self.name(f"item.{item.key}"), style="bold")
            table.add_row(name, amount, share, how, f"{self.say(f'cli.basis.{item.basis}')} [{number}]")
        return table

    def sources(self, bill: Bill) -> Iterable[RenderableType]:
        """What the numbers in brackets stand for."""
        yield Styled(self.say("cli.sources"), style="bold")
        for number, source in enumerate(once_sources(bill), 1):
            title = source_title(source, self.language)
            yield Styled(" ".join(part for part in (f"[{number}]", title, source.url) if part), style="dim")

    def totals(self, bill: Bill) -> Table:
        table = self.table(*(self.say(f"cli.column.{c}") for c in ("total", "amount", "low", "high")), right=(1, 2, 3))
        rows: Sequence[tuple[str, Range]] = (
            ("allocated", bill.allocated), ("reserved", bill.reserved), ("process", bill.process), ("need", bill.need),
            ("capacity", Range.exact(bill.capacity_bytes)),
        )  # fmt: skip
        for name, total in rows:
            exact = total.low == total.high
            spread = ("", "") if exact else (self.size(total.low), self.size(total.high))
            table.add_row(self.say(f"cli.total.{name}"), self.size(total.value), *spread)
        return table

    def phases(self, bill: Bill) -> Table:
        table = self.table(*(self.say(f"cli.column.{c}") for c in ("phase", "allocated", "largest")), right=(1,))
        for phase in bill.phases:
            largest = sorted(phase.items.items(), key=lambda item: -item[1])[:4]
            parts = ", ".join(f"{self.name(f'item.{key}')} {self.size(size)}" for key, size in largest if size)
            style = "bold" if phase.name == bill.peak_phase else ""
            mark = f" ← {self.say('cli.peak')}" if phase.name == bill.peak_phase else ""
            table.add_row(
                f"{self.name(f'phase.{phase.name}')}{mark}", self.size(phase.allocated_bytes), parts, style=style
            )
        return table

    def host(self, host: HostBill) -> Table:
        """Host memory by item, and what a process and a node need of it."""
        columns = (*(self.say(f"host.column.{c}") for c in ("item", "process", "node", "held", "when")),)
        table = self.table(*columns, self.say("cli.column.how"), right=(1, 2), lines=True)
        for item in host.items:
            amounts = (self.size(item.process.value), self.size(item.node.value))
            held, when = self.say(f"host.residence.{item.residence}"), self.say(f"host.phase.{item.phase}")
            basis = self.say(f"cli.basis.{item.basis}")
            table.add_row(self.name(f"host.{item.key}"), *amounts, held, when, f"{self.text(item.formula)} ({basis})")
        for name, total in (("process", host.process), ("node", host.node)):
            label = self.say(f"host.total.{name}", processes_count=host.processes)
            amounts = (self.size(total.value), "") if name == "process" else ("", self.size(total.value))
            spread = "" if total.low == total.high else f"{self.size(total.low)} – {self.size(total.high)}"
            table.add_row(Styled(label, style="bold"), *amounts, "", self.say(f"host.phase.{host.peak_phase}"), spread)
        return table

    def capacity(self, bill: Bill) -> Table:
        figures = bill.serving
        assert figures is not None
        table = self.table(self.say("cli.column.capacity"), "", right=(1,))
        rows: Sequence[tuple[str, str]] = (
            ("budget", self.size(figures.budget_bytes)),
            ("pool", self.size(figures.kv_pool_bytes)),
            ("needed_pool", self.size(figures.needed_pool_bytes)),
            ("per_token", self.size(figures.bytes_per_token)),
            ("state", self.size(figures.state_bytes_per_sequence)),
            ("tokens", f"{figures.kv_tokens:,}"),
            ("concurrency", f"{figures.max_concurrency:,.2f} × {figures.max_model_len:,}"),
            ("requests", f"{figures.requests_at_context:,.1f}"),
            ("practical", f"{figures.practical_requests:,}"),
            ("reserve", self.size(figures.peak_reserve_bytes)),
            ("steady", f"{figures.steady_requests:,}"),
            ("host", self.size(figures.host_bytes)),
            ("host_tokens", f"{figures.host_cache_tokens:,}"),
        )
        for name, value in rows:
            table.add_row(self.say(f"cli.figure.{name}"), value)
        return table

    def pace(self, found: Pace) -> RenderableType:
        """Speed as usual value and range, what traffic does, and the goals."""
        if found.speed is None:
            return Styled(self.text(found.reason) if found.reason is not None else "")
        table = self.table(self.say("cli.column.pace"), "", self.say("cli.column.range"), right=(1, 2))
        rate, run = found.speed, found.outlook.simulated if found.outlook is not None else None
        rows = [(name, e, unit) for name, e, unit in (
            ("ttft", rate.ttft_s, " s"), ("tpot", rate.tpot_s, " s"), ("rate", rate.tokens_per_s, ""),
        )]  # fmt: skip
        for name, e, unit in rows:
            table.add_row(self.say(f"cli.pace.{name}"), f"{e.value:,.3g}{unit}", f"{e.low:,.3g} – {e.high:,.3g}{unit}")
        if run is not None:
            table.add_row(self.say("cli.pace.waiting"), f"{run.waiting_p50_s:,.3g} s", f"≤ {run.waiting_p99_s:,.3g} s")
        for field, verdict in found.goals.items():
            table.add_row(self.say("cli.pace.goal", field=field), self.say(f"cli.goal.{verdict}"), "")
        return table

    def assumptions(self, texts: Iterable[Text]) -> None:
        told = once(texts)
        if told:
            self.show(Styled(self.say("cli.assumed"), style="bold"), *(Styled(f"- {self.text(t)}") for t in told))

    # ------------------------------------------------------------------------------------- shapes and lists

    def shape(self, model: LoadedModel) -> None:
        shape = model.shape
        table = self.table(self.say("cli.column.component"), self.say("cli.column.parameters"), "", right=(1, 2))
        for name, count in shape.parameters.model_dump().items():
            if count:
                style = "bold" if name in ("total", "active") else ""
                table.add_row(self.name(f"component.{name}"), f"{count:,}", format_params(count), style=style)
        self.show(Styled(self.model_line(model), style="bold"), "", table)
        try:
            cache = shape.cache.model_dump()
        except UnknownFamilyError as error:
            self.show(Styled(self.text(error.message)))
        else:
            table = self.table(self.say("cli.column.cache"), "", right=(1,))
            for name, value in cache.items():
                shown = "–" if value is None else self.size(value) if "bytes" in name else f"{value:,}"
                table.add_row(self.say(f"cli.cache.{name}"), shown)
            self.show(table)
        self.assumptions(model.assumptions)

    def gpus(self, cards: Iterable[Gpu]) -> None:
        table = self.table(*(self.say(f"cli.column.{c}") for c in ("key", "name", "marketed", "driver")), right=(2, 3))
        for card in cards:
            mark = " ≈" if card.total_estimated else ""
            table.add_row(card.key, card.name, self.size(card.marketed_bytes), self.size(card.total_bytes) + mark)
        self.show(table, Styled(self.say("cli.gpus.note"), style="dim"))

    def presets(self, models: Iterable[Preset]) -> None:
        columns = ("key", "id", "family", "parameters")
        table = self.table(*(self.say(f"cli.column.{c}") for c in columns), right=(3,))
        for model in models:
            total = load_preset(model.key).shape.parameters.total
            table.add_row(model.key, model.id, model.family, format_params(total))
        self.show(table)

    def error(self, error: CalculatorError) -> None:
        message = self.text(error.message)
        line = message if not error.field or error.field in message else f"{plain(error.field)}: {message}"
        self.show(Styled(line, style="bold red"), Styled(self.text(error.remedy)))

    def table(self, *columns: str, right: tuple[int, ...] = (), lines: bool = False) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, padding=(0, 2, 1 if lines else 0, 0))
        for i, column in enumerate(columns):
            # Folding keeps every figure and address whole where the terminal is narrow.
            table.add_column(
                Styled(column), justify="right" if i in right else "left", overflow="fold", no_wrap=i in right
            )
        return table
