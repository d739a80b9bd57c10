"""Each package is entered through its face: what its `__init__` re-exports, and the modules that it
lists in its docstring.

    from automap.plan import x          x is imported, defined or lazily given by `automap.plan`
    from automap.plan.record import X   a line of its docstring begins with `automap.plan.record`

For a module in nested packages this holds for each of them that the importer is not in itself.
Tests and scripts may look at anything.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
import re

import pytest


ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("automap", "hlo_tools", "rl")
_DECLARED = re.compile(r"^ {0,4}`((?:\w+\.)+\w+)` {2,}\S", re.MULTILINE)


def _sources() -> dict[str, str]:
    """Every module's text by its dotted name; a package's is its `__init__`."""
    paths = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text("utf-8")
        for path in paths
    }


def _declared(package_source: str) -> set[str]:
    """The modules that a package's docstring lists, each with what it is."""
    return set(_DECLARED.findall(ast.get_docstring(ast.parse(package_source), clean=False) or ""))


def _imports(source: str, modules: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Line and name of each module that is imported, also inside of functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                is_module = member in modules or f"{member}.__init__" in modules
                yield node.lineno, member if is_module else node.module


def _enters(importer: str, module: str) -> Iterator[tuple[str, str]]:
    """(package, module in it) for each package that an import goes into from outside."""
    while "." in module:
        package = module.rpartition(".")[0]
        if not importer.startswith(f"{package}."):
            yield package, module
        module = package


def undeclared(modules: Mapping[str, str]) -> list[str]:
    """A sentence for each import of a module that is in no face."""
    faces = {
        name.removesuffix(".__init__"): _declared(source)
        for name, source in modules.items()
        if name.endswith(".__init__")
    }
    return [
        f"{importer.replace('.', '/')}.py:{line} imports {module}, which the face of {package} "
        f"does not list: import what {package} offers, or add a line for `{module}` to the "
        f"docstring of {package.replace('.', '/')}/__init__.py"
        for importer, source in modules.items()
        for line, imported in _imports(source, modules)
        for package, module in _enters(importer, imported)
        if package in faces and module not in faces[package]
    ]


def unused(modules: Mapping[str, str]) -> list[str]:
    """A sentence for each line of a face that nothing outside of its package needs."""
    entered = {
        module
        for importer, source in modules.items()
        for _, imported in _imports(source, modules)
        for _, module in _enters(importer, imported)
    }
    return [
        f"{name.replace('.', '/')}.py lists `{module}`, which no module outside imports: remove "
        "the line"
        for name, source in modules.items()
        if name.endswith(".__init__") and "." in name.removesuffix(".__init__")
        for module in sorted(_declared(source) - entered)
    ]


def test_packages_are_entered_through_their_faces():
    assert undeclared(_sources()) == []


def test_faces_are_no_wider_than_what_others_import():
    assert unused(_sources()) == []


@pytest.mark.parametrize(
    ("source", "offences"),
    [
        ("from p.a import y", 0),
        ("from p.a.y import z", 0),
        ("def f():\n    from p.a import x", 1),
        ("from p.a.x import z", 1),
        ("from p.a.b.y import z", 1),
        ("from p.a import offered", 0),
    ],
)
def test_a_module_that_is_in_no_face_is_seen(source: str, offences: int):
    modules = {
        "p.__init__": '"""P.\n\n`p.a`  a package\n"""',
        "p.a.__init__": '"""A.\n\n    `p.a.y`   declared\n"""\nfrom p.a.x import offered',
        "p.a.x": "",
        "p.a.y": "",
        "p.a.b.__init__": '"""B.\n\n    `p.a.b.y`   declared here, but `p.a` has no `p.a.b`\n"""',
        "p.a.b.y": "",
        "p.c": source,
    }
    assert len(undeclared(modules)) == offences


def test_a_line_that_nobody_needs_is_seen():
    modules = {"p.a.__init__": '"""A.\n\n    `p.a.x`   for nobody\n"""', "p.a.x": "", "p.c": ""}
    assert len(unused(modules)) == 1
