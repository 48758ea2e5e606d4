"""Rules of the whole project that no linter checks: start-up, the public API, and what is packed."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hiertrain

ROOT = Path(__file__).resolve().parents[1]
PACKAGING = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
HEAVY = ("numpy", "scipy", "ortools", "simpy", "matplotlib", "pydantic", "rich")


def modules_after(statement: str) -> set[str]:
    """Top-level modules that are loaded in a fresh interpreter after a statement."""
    code = (
        f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import hiertrain", "import hiertrain.cli"])
def test_start_up_is_light(statement):
    """Neither the API nor the command line loads a heavy library before it is used (counted in modules, not seconds)."""
    assert not modules_after(statement) & set(HEAVY)


@pytest.mark.parametrize("name", hiertrain.__all__)
def test_public_names_are_there(name):
    """Every name that ``hiertrain`` promises can be had."""
    assert getattr(hiertrain, name) is not None


def test_unknown_name_is_an_attribute_error():
    """A name that the API does not have fails as in any module."""
    with pytest.raises(AttributeError, match="no_such_name"):
        hiertrain.no_such_name  # noqa: B018


def test_every_package_is_packed():
    """The list of packages in pyproject.toml is the list of folders of the product that hold Python modules."""
    tops = sorted({name.partition(".")[0] for name in PACKAGING["packages"]})
    found = {path.parent for top in tops for path in (ROOT / top).rglob("*.py")}
    assert sorted(PACKAGING["packages"]) == sorted(".".join(path.relative_to(ROOT).parts) for path in found)


def test_every_data_file_is_packed():
    """Each file of the product that is not Python matches a pattern of package-data."""
    for package in PACKAGING["packages"]:
        folder = ROOT / package.replace(".", "/")
        patterns = PACKAGING["package-data"].get(package, []) + PACKAGING["package-data"]["*"]
        packed = {path for pattern in patterns for path in folder.glob(pattern)}
        inside = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        own = [path for path in inside if _package_of(path) == package]
        assert not [path for path in own if path.suffix != ".py" and path not in packed]


def _package_of(path: Path) -> str:
    """Nearest package that a file lies in."""
    parts = path.relative_to(ROOT).parts[:-1]
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(name for name in names if name in PACKAGING["packages"])


def test_sources_are_typed():
    """Every top-level package tells type checkers that it is typed (PEP 561)."""
    tops = {name.partition(".")[0] for name in PACKAGING["packages"]}
    assert not [top for top in sorted(tops) if not (ROOT / top / "py.typed").is_file()]


def test_the_public_names_are_there_and_typed():
    """Every public name is where the table says, and type checkers are told of the same names."""
    tree = ast.parse(Path(hiertrain.__file__).read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    told = {alias.asname or alias.name for line in typed.body for alias in line.names}
    assert told == set(hiertrain.__all__) - {"__version__"}
    for name in hiertrain.__all__:
        assert getattr(hiertrain, name) is not None
