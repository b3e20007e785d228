"""Rules for every file: no trace of the machine it was written on, modules of readable size, pages that only show."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.source_files import ROOT, files, name, python_files, tree

TEXT_SUFFIXES = {
    ".cfg", ".css", ".csv", ".html", ".ini", ".js", ".json", ".jsonl", ".md", ".po", ".py", ".sh", ".svg", ".toml",
    ".txt", ".yaml", ".yml", "",
}  # fmt: skip
HOME = re.compile(r"(?<![\w.-])/(?:home|Users|root|work)/|\b[A-Z]:\\+Users\\")
MODULE_LINES = 500


def test_no_file_tells_where_it_was_written() -> None:
    """A path below somebody's home folder works on one machine only, and says more than it should."""
    found = []
    for path in files():
        if path.suffix not in TEXT_SUFFIXES or path.is_relative_to(ROOT / "tests" / "test_repository.py"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if HOME.search(line):
                found.append(f"{name(path)}:{number}")
    assert not found


@pytest.mark.parametrize("line", ["see /home/ann/x.json", "'/root/.cache'", "open('C:\\\\Users\\\\ann')"])
def test_the_rule_knows_a_home_path(line: str) -> None:
    assert HOME.search(line)


@pytest.mark.parametrize("line", ["https://example.org/home/page", "the root/leaf ratio", "org/work/model"])
def test_the_rule_lets_addresses_pass(line: str) -> None:
    assert not HOME.search(line)


def test_modules_stay_readable() -> None:
    """A module has one noun, in about 300 lines; one that outgrows the limit has two, and is cut."""
    lengths = {
        name(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("calculator", "ui", "pages", "validation", "app.py", "scripts", "benchmarks")
    }
    assert not {file: lines for file, lines in lengths.items() if lines > MODULE_LINES}


ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
UNIT_FACTORS = {1024, 1024**2, 1024**3, 10**9, 1e9}


def names_bytes(node: ast.AST) -> bool:
    """Whether an expression mentions a quantity of bytes: a name, attribute or key that says so."""
    for part in ast.walk(node):
        label = ""
        if isinstance(part, ast.Name):
            label = part.id
        elif isinstance(part, ast.Attribute):
            label = part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            label = part.value
        if re.fullmatch(r"(?:.*_)?bytes", label):
            return True
    return False


def byte_arithmetic(module: ast.AST) -> Iterator[int]:
    """Lines that compute with bytes: an operation, a sum, or a unit's factor."""
    for node in ast.walk(module):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ARITHMETIC):
            sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
            if any(names_bytes(side) or constant(side) in UNIT_FACTORS for side in sides):
                yield node.lineno
        elif isinstance(node, ast.Call) and constant_name(node.func) == "sum" and any(map(names_bytes, node.args)):
            yield node.lineno


def constant_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def constant(node: ast.AST) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def test_pages_do_not_compute_with_bytes() -> None:
    found = {name(path): lines for path in python_files("pages", "app.py") if (lines := [*byte_arithmetic(tree(path))])}
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "x = bill.need_bytes / capacity",
        "x = 2 * item.bytes",
        "total += item['max_bytes']",
        "sum(item.bytes for item in bill.items)",
        "size / 1024**3",
        "size / 1e9",
    ],
)
def test_the_rule_sees_arithmetic(code: str) -> None:
    assert list(byte_arithmetic(ast.parse(code)))


@pytest.mark.parametrize("code", ["show(bill.need_bytes)", "x = columns + 1", "if a_bytes > b_bytes: pass"])
def test_the_rule_lets_showing_pass(code: str) -> None:
    assert not list(byte_arithmetic(ast.parse(code)))
