"""The project's own files, and what their code imports: for the tests that hold the whole repository to its rules."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def files() -> tuple[Path, ...]:
    """Every file that belongs to the project: tracked, or new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, text=True).split("\0")
    return tuple(sorted(path for name in names if name and (path := ROOT / name).is_file()))


def python_files(*folders: str) -> list[Path]:
    """The Python files under some top-level folders; a name ending in .py stands for itself."""
    return [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(module: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module name that code imports, wherever the statement stands, with its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), node.lineno


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
