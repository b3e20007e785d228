"""Who may import whom. The calculator is the core: it knows nothing of the pages, and stays light."""

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from tests.source_files import ROOT, imported, name, python_files, tree

HEAVY = {"streamlit", "plotly", "torch", "transformers", "accelerate", "peft", "numpy", "pandas"}
FRONT = {"app", "pages", "ui"}
OWN = FRONT | {"calculator", "validation", "benchmarks", "scripts", "tests"}

# Folder -> top-level names that it must not import.
FORBIDDEN = {
    "calculator": HEAVY | (OWN - {"calculator"}),
    "validation": HEAVY | (OWN - {"calculator", "validation"}),
    "ui": {"app", "pages", "tests", "scripts", "benchmarks", "torch", "transformers"},
    "pages": {"app", "tests", "scripts", "benchmarks", "torch", "transformers"},
    "app.py": {"tests", "scripts", "benchmarks", "torch", "transformers"},
}


def breaches(module: ast.AST, forbidden: set[str]) -> list[tuple[int, str]]:
    return [(line, what) for what, line in imported(module) if what.split(".")[0] in forbidden]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_nobody_imports_what_lies_above(folder: str) -> None:
    paths = python_files(folder)
    assert paths, f"nothing found under {folder}"
    found = {name(path): wrong for path in paths if (wrong := breaches(tree(path), FORBIDDEN[folder]))}
    assert not found


def test_the_rule_sees_imports_inside_functions() -> None:
    code = ast.parse("def bill():\n    from streamlit.web import cli\n    import plotly.graph_objects as go\n")
    assert breaches(code, HEAVY) == [(2, "streamlit.web"), (3, "plotly.graph_objects")]


def test_importing_the_core_loads_nothing_heavy() -> None:
    """Also what a dependency would bring along behind the core's back."""
    modules = [
        name(path).removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        for path in python_files("calculator")
        if path.name != "__main__.py"
    ]
    code = (
        f"import importlib, sys\nfor module in {modules!r}: importlib.import_module(module)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "[]"


def requirement_names(file: str) -> set[str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return {normalised(line.split("==")[0]) for line in lines if line}


def normalised(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def third_party(*folders: str) -> set[str]:
    roots = {what.split(".")[0] for path in python_files(*folders) for what, _ in imported(tree(path))}
    owners = packages_distributions()
    return {normalised(owners[root][0]) for root in roots - OWN - set(sys.stdlib_module_names) if root in owners}


def test_what_is_imported_is_required() -> None:
    run = requirement_names("requirements.txt")
    assert third_party("calculator", "ui", "pages", "app.py", "validation") <= run
    assert third_party("tests", "scripts", "benchmarks") <= run | requirement_names("requirements-dev.txt")


def test_what_is_required_is_imported() -> None:
    assert requirement_names("requirements.txt") <= third_party("calculator", "ui", "pages", "app.py")


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_pins_are_exact(file: str) -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    loose = [line for line in lines if line and line.count("==") != 1]
    assert not loose
