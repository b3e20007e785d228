"""Files to take away hold the bill's own numbers, and nothing in them acts in a spreadsheet or on a page."""

import csv
import io

import pytest

from calculator.bill import Item
from calculator.sources import Source
from calculator.text import text
from tests.ui.bills import bill, item, training_bill
from ui.i18n import Words
from ui.markdown import plain
from ui.takeaway import as_csv, as_markdown


def rows(written: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written)))


def test_the_spreadsheet_holds_whole_bytes_that_add_up() -> None:
    made = training_bill()
    found = rows(as_csv(made, Words()))
    assert [int(row["bytes"]) for row in found] == [i.bytes for i in made.items]
    tensors = sum(int(row["bytes"]) for row in found if row["layer"] == "tensor")
    assert tensors == made.allocated.value


@pytest.mark.parametrize("start", ["=1+1", "+cmd", "-2", "@SUM(A1)"])
def test_no_cell_is_a_formula(start: str) -> None:
    evil = Item.model_validate(
        item("weights", 1).model_dump() | {"source": Source(title=start), "formula": text(f"{start} no such id")}
    )
    for row in rows(as_csv(bill(evil), Words())):
        assert not row["source"].startswith(("=", "+", "-", "@"))
        assert not row["formula"].startswith(("=", "+", "-", "@"))


def test_the_page_of_markdown_has_a_line_for_each_item_and_total() -> None:
    made = training_bill()
    written = as_markdown(made, Words(), "Memory of full training", ("a model",))
    lines = [line for line in written.splitlines() if line.startswith("| ")]
    assert len(lines) == len(made.items) + 2
    assert "- Peak, allocated: 62.50 GiB" in written
    assert "[Written by hand](https://example.org/source)" in written


@pytest.mark.parametrize(
    "text_", ["[x](javascript:alert(1))", "![](http://a.b/c.png)", "<b>", ":red[hot]", "$x$", "a|b", "`c`", "# head"]
)
def test_foreign_text_stays_text(text_: str) -> None:
    shown = plain(text_)
    for active in "[]()<>!:$|`#":
        assert shown.count(active) == shown.count("\\" + active)
    assert plain("two\nlines") == "two lines"
