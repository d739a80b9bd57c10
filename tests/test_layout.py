"""The walls of the house: which folder may import what, sizes, no private JAX, no machine paths.

Each rule is a function of one source file that returns the offences it finds; each is also shown an
offender.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
import re
import sys
import tomllib

import pytest


ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("automap", "hlo_tools", "rl", "models", "scripts", "examples", "tests")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 65
PRIVATE_JAX = re.compile(r"jax[.]_src|jaxlib[.](?:_|xla_)")
MAY_TOUCH_PRIVATE_JAX = {"automap/jax_compat.py", "hlo_tools/jax_compat.py"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|work|home|Users)/")

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _import_names(requirements: list[str]) -> set[str]:
    """`["jax>=0.10", "tomli-w"]` -> `{"jax", "tomli_w"}`; a distribution's module has its name.

    Except protobuf, whose module is google: only hlo_tools may import it.
    """
    return {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in requirements}


# Folders absent here (models, scripts, examples, tests) may import anything.
MAY_IMPORT = {
    "automap": {"automap", "hlo_tools", "rl"}
    | _import_names(_PROJECT["dependencies"])
    | _import_names(_PROJECT["optional-dependencies"]["partitions"]),
    "hlo_tools": {"hlo_tools", "numpy", "google", "jaxlib"},
    "rl": {"rl", "numpy", "numba"} | _import_names(_PROJECT["optional-dependencies"]["rl"]),
}


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level module of every import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "a relative import" if node.level else str(node.module).split(".")[0]


def arrows(path: PurePath, source: str) -> Iterator[str]:
    allowed = MAY_IMPORT.get(path.parts[0])
    if allowed is not None:
        for line, name in _imported(ast.parse(source)):
            if name not in allowed and name not in sys.stdlib_module_names:
                yield f"{path}:{line}: {name}; allowed in {path.parts[0]}: {sorted(allowed)}"


def torch_outside_rl(path: PurePath, source: str) -> Iterator[str]:
    if path.parts[0] not in {"rl", "scripts", "tests", "examples"}:
        for line, name in _imported(ast.parse(source)):
            if name == "torch":
                yield f"{path}:{line}: only rl imports torch"


def file_lines(path: PurePath, source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{path}: {lines} lines, allowed {MAX_FILE_LINES}; split it by idea"


def function_lines(path: PurePath, source: str) -> Iterator[str]:
    """A function's body fits a screen; its arguments and what documents them are not counted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and node.body[1:] else node.body[0]
            lines = (node.end_lineno or node.lineno) - first.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {lines} lines, allowed "
                    f"{MAX_FUNCTION_LINES}"
                )


def global_statements(path: PurePath, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Global):
            yield f"{path}:{node.lineno}: global; pass the state"


def private_jax(path: PurePath, source: str) -> Iterator[str]:
    """Ruff bans the imports; this also sees module names in strings."""
    if path.as_posix() not in MAY_TOUCH_PRIVATE_JAX:
        yield from (
            f"{path}: {found}; go through jax_compat" for found in PRIVATE_JAX.findall(source)
        )


def machine_paths(path: PurePath, source: str) -> Iterator[str]:
    yield from (
        f"{path}: {found} exists on one machine only" for found in MACHINE_PATH.findall(source)
    )


Rule = Callable[[PurePath, str], Iterator[str]]
OFFENDERS: list[tuple[Rule, str, str]] = [
    (arrows, "hlo_tools/x.py", "def f():\n    from automap import plan\n"),
    (arrows, "rl/x.py", "import hlo_tools.graph\n"),
    (arrows, "automap/x.py", "from models import t5\n"),
    (arrows, "automap/x.py", "import flax.nnx\n"),
    (arrows, "automap/x.py", "from . import plan\n"),
    (torch_outside_rl, "models/x.py", "import torch.nn\n"),
    (file_lines, "models/x.py", "\n" * (MAX_FILE_LINES + 1)),
    (function_lines, "models/x.py", "def f():\n" + "    1\n" * (MAX_FUNCTION_LINES + 1)),
    (global_statements, "models/x.py", "def f():\n    global x\n    x = 1\n"),
    (private_jax, "models/x.py", f"from {'jax.'}_src import core\n"),
    (private_jax, "automap/x.py", f"NAMES = ['{'jaxlib.'}_hlo']\n"),
    (machine_paths, "scripts/x.py", f"OUT = '/{'home'}/me/out'\n"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in OFFENDERS))


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule: Rule):
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert paths, f"no sources under {ROOT}"
    offences = [text for p in paths for text in rule(p.relative_to(ROOT), p.read_text("utf-8"))]
    assert offences == []


@pytest.mark.parametrize(("rule", "path", "source"), OFFENDERS)
def test_the_rule_sees_an_offender(rule: Rule, path: str, source: str):
    assert len(list(rule(PurePath(path), source))) == 1


def test_the_rules_let_good_code_pass():
    source = (
        "import numpy as np\n\n\ndef f():\n    import jaxlib\n    return 'https://a.b/home/c'\n"
    )
    assert [text for rule in RULES for text in rule(PurePath("hlo_tools/x.py"), source)] == []
    private = f"import {'jax.'}_src\n"
    assert list(private_jax(PurePath("automap/jax_compat.py"), private)) == []


def test_committed_texts_hold_no_machine_paths():
    texts = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.txt"), ROOT / "Makefile"]
    offences = [
        text for p in texts for text in machine_paths(p.relative_to(ROOT), p.read_text("utf-8"))
    ]
    assert offences == []
