"""Imports between the packages of bngrad go one way, and no module imports itself by way of others.

Imports in functions and for type checkers count.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bngrad

ROOT = Path(bngrad.__file__).parent

ORDER = (
    ("errors",),
    ("arguments",),
    ("option_fields",),
    ("options",),
    ("opset",),
    ("graph",),
    ("io",),
    ("passes", "runtime"),
    ("autodiff", "distributed"),
    ("inspection", "oracle"),
    ("training",),
    ("validation", "ort_training", "functional", "federated", "api"),
    ("torch", "keras"),
    ("__init__",),
    ("bench",),
    ("reports",),
    ("cli",),
    ("__main__",),
)
"""The top-level modules and packages; each imports only from those in rows above its own."""
ROW = {name: row for row, names in enumerate(ORDER) for name in names}


def module_names(root: Path) -> dict[str, Path]:
    """Every module below a package folder, by its dotted name within the package."""
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imports(root: Path, package: str) -> dict[str, set[str]]:
    """The modules that each module names in an import statement, or as a literal in a call that imports."""
    modules = module_names(root)
    imported: dict[str, set[str]] = {}
    for name, path in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Call):
                names.add(_imported_by(node))
        names = {dotted for dotted in names if dotted.split(".")[0] == package}
        imported[name] = {_module(dotted.partition(".")[2], modules) for dotted in names} - {name}
    return imported


def _imported_by(call: ast.Call) -> str:
    """The module that a call of ``import_module`` or ``__import__`` names, or the literal start of its name."""
    if ast.unparse(call.func).rpartition(".")[2] not in ("import_module", "__import__") or not call.args:
        return ""
    name = call.args[0]
    name = name.values[0] if isinstance(name, ast.JoinedStr) else name
    return str(name.value).rstrip(".") if isinstance(name, ast.Constant) else ""


def _module(dotted: str, modules: dict[str, Path]) -> str:
    """The module that holds an imported name; the package itself for one of its own names."""
    while dotted and dotted not in modules:
        dotted = dotted.rpartition(".")[0]
    return dotted or "__init__"


def backward_arrows(arrows: dict[str, set[str]]) -> list[str]:
    """The imports that do not go from a lower row of ORDER to a higher one."""
    return [
        f"{module} imports {other}"
        for module, others in sorted(arrows.items())
        for other in sorted(others)
        if (here := module.split(".")[0]) != (there := other.split(".")[0]) and ROW[here] <= ROW[there]
    ]


def test_every_package_has_a_row():
    assert {name.split(".")[0] for name in module_names(ROOT)} == set(ROW)


def test_imports_go_one_way():
    arrows = imports(ROOT, "bngrad")
    assert sum(map(len, arrows.values())) > 500
    assert backward_arrows(arrows) == []


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter(imports(ROOT, "bngrad")).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_readme_shows_the_order():
    shown = " <- ".join(", ".join(names) for names in ORDER if "__" not in names[0])
    assert shown in " ".join((Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split())


PLANTED = {
    "in-a-function": "def f():\n    from bngrad.cli import main",
    "for-type-checkers": "if TYPE_CHECKING:\n    from bngrad.cli.options import Options",
    "a-whole-package": "import bngrad.cli",
    "by-a-call": 'import_module("bngrad.cli")',
    "by-a-call-of-the-package": 'importlib.import_module("bngrad.cli").main()',
    "by-a-call-with-a-computed-end": 'import_module(f"bngrad.cli.{name}")',
    "by-the-builtin-function": '__import__("bngrad.cli")',
}


@pytest.mark.parametrize("text", PLANTED.values(), ids=PLANTED)
def test_an_import_that_goes_back_is_found(tmp_path, text):
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "nodes.py").write_text(f"{text}\n", encoding="utf-8")
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__init__.py").write_text("", encoding="utf-8")
    assert backward_arrows(imports(tmp_path, "bngrad")) == ["graph.nodes imports cli"]
