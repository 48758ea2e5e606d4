"""The size budget: short functions, short modules, every public name documented."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("problem", "cost_models", "placement", "programs", "simulator", "executor", "experiments", "hiertrain")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MODULE_LINES = 400
FUNCTION_MEDIAN, FUNCTION_P90, FUNCTION_MOST = 8, 25, 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(function: Function, source: list[str]) -> int:
    """Lines of a function's body; the docstring, blank lines and comment lines do not count."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    lines = (line.strip() for line in source[body[0].lineno - 1 : body[-1].end_lineno])
    return sum(1 for line in lines if line and not line.startswith("#"))


def function_sizes() -> list[tuple[int, str]]:
    """Code lines of every function of the product with its place, longest first."""
    sizes = []
    for path in MODULES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                sizes.append((code_lines(node, text.splitlines()), where))
    return sorted(sizes, reverse=True)


def undocumented(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    """Public classes, functions and methods without a docstring."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None and not _is_overload(node):
                yield f"{prefix}{node.name} (line {node.lineno})"
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, f"{prefix}{node.name}.")


def _is_overload(node: Function | ast.ClassDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)


def test_functions_are_short():
    """Functions of the product have a median of at most 8 code lines, nine in ten at most 25, none more than 50."""
    sizes = function_sizes()
    lengths = [size for size, _ in sizes]
    longest = "\n".join(f"{size:4} {where}" for size, where in sizes[:20])
    assert lengths[0] <= FUNCTION_MOST, f"functions over {FUNCTION_MOST} lines are among these:\n{longest}"
    assert lengths[math.floor(0.1 * len(lengths))] <= FUNCTION_P90, f"the longest functions:\n{longest}"
    assert median(lengths) <= FUNCTION_MEDIAN, f"median {median(lengths)}; the longest functions:\n{longest}"


def test_modules_are_short():
    """No module of the product has more than 400 lines."""
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: size for name, size in sizes.items() if size > MODULE_LINES}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_documented(package):
    """Every public module, class, function and method of the product has a docstring."""
    missing = []
    for path in (path for path in MODULES if path.is_relative_to(ROOT / package)):
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(ROOT))
        if ast.get_docstring(tree) is None:
            missing.append(f"{name}: the module")
        missing += [f"{name}: {found}" for found in undocumented(tree.body, "")]
    assert not missing, "no docstring:\n" + "\n".join(missing)


def test_counting():
    """Docstrings, comments and blank lines are not counted; a statement over several lines counts each."""
    text = 'def f():\n    """Say.\n\n    More.\n    """\n    # why\n\n    return [\n        1,\n    ]\n'
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert code_lines(function, text.splitlines()) == 3


def test_every_test_says_what_it_shows():
    """Each test has a docstring."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function) and node.name.startswith("test_") and ast.get_docstring(node) is None
    ]
    assert not silent, "no docstring:\n" + "\n".join(silent)
