"""Which message ids the code uses, found by reading its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from calculator import errors
from calculator.text import Text

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("calculator", "ui", "pages", "validation")
TEXT_CALLS = {"text", "say", "words"}
ERROR_CALLS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.CalculatorError)
}
ID = re.compile(r"[a-z][a-z0-9_]*(\.[A-Za-z0-9_\-]+)+")


@dataclass
class Usage:
    """Ids of one file: ``needed`` must be in the catalogues, ``literals`` and ``patterns`` may be. ``given`` lists for
    each call that spells out its values the line, the id and the names of the values.

    A pattern is an f-string that starts with words and a dot; one that starts with a field could be anything.
    """

    path: Path
    needed: dict[str, int] = field(default_factory=dict)
    given: list[tuple[int, str, set[str]]] = field(default_factory=list)
    literals: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)


def source_files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))
    app = ROOT / "app.py"
    if app.exists():
        yield app


def usage(path: Path) -> Usage:
    found = Usage(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.literals.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(v.value)) if isinstance(v, ast.Constant) else "[^ ]+" for v in node.values]
            first = node.values[0]
            if isinstance(first, ast.Constant) and "." in str(first.value):
                found.patterns.add("".join(parts))
        elif isinstance(node, ast.Call):
            _call(node, found)
    return found


def _call(node: ast.Call, found: Usage) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    ids = list(_ids(node.args[0])) if node.args else []
    if name == Text.__name__:
        ids = [i for k in node.keywords if k.arg == "id" for i in _ids(k.value)]
    elif name not in TEXT_CALLS | ERROR_CALLS:
        return
    values = {str(k.arg) for k in node.keywords}
    for id_ in filter(ID.fullmatch, ids):
        also = [f"{id_}.remedy"] if name in ERROR_CALLS else []
        for each in (id_, *also):
            found.needed[each] = node.lineno
            if name != Text.__name__ and all(k.arg is not None for k in node.keywords):
                found.given.append((node.lineno, each, values))


def _ids(node: ast.expr) -> Iterator[str]:
    """The ids that an argument can be: a literal, or either branch of a condition."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _ids(node.body)
        yield from _ids(node.orelse)
