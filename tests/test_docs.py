"""The documentation is built without a warning, and what it names exists."""

import ast
from collections.abc import Iterator
from functools import cache
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

import automap


ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("automap", "docs", "examples", "hlo_tools", "models", "rl", "scripts", "tests")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*\w")
MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})(?:\.[A-Za-z_]\w*)+(?![\w/-])")
FILE = re.compile(r"`(\w+\.py)`")
# Names of code: with an underscore, or of several capitalized words.
NAME = re.compile(r"`([A-Za-z]+_\w+|[A-Z][a-z]+(?:[A-Z][a-z]+)+)(?:\(\))?`")
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# Packages of this repository are inside of automap in a wheel.
# Files that readers make as they follow a page.
MADE = {"train.py", "kernel.py", "handmade.py"}
IN_A_WHEEL = re.compile(r"^automap\.(?=(?:hlo_tools|rl)\b)")


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("mkdocs")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (build.returncode, build.stdout + build.stderr) == (0, "")
    fetched = re.compile(r"<(?:script|img|link rel=.stylesheet.)[^>]*(?:src|href)=.https?:[^>]*>")
    for page in tmp_path.rglob("*.html"):
        assert not fetched.findall(page.read_text()), page


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs/reference/api.md").read_text()
    shown = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    assert shown == set(automap.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path):
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if not _is_path(path)]
    missing += [name for name in MODULE.findall(text) if not _is_name(name)]
    missing += [file for file in FILE.findall(text) if file not in _files() and file not in MADE]
    missing += [name for name in NAME.findall(BLOCK.sub("", text)) if name not in _words()]
    assert not missing


def test_a_name_that_is_gone_is_noticed():
    assert _is_path("automap/cli/commands.py") and _is_path("tests/*.py")
    assert not _is_path("automap/cli/no_such_file.py")
    assert _is_name("automap.plan") and _is_name("automap.Plan.load")
    assert _is_name("automap.errors.PlanError") and not _is_name("automap.errors.NoSuchError")
    assert not _is_name("automap.no_such_module")
    assert _is_name("automap.rl.env.EnvShape") and not _is_name("automap.rl.no_such_module")


def _sources() -> Iterator[Path]:
    for folder in ("automap", "examples", "hlo_tools", "models", "rl", "scripts", "tests"):
        yield from (ROOT / folder).rglob("*.py")
    yield from ROOT.glob("*.py")


@cache
def _files() -> frozenset[str]:
    """Names of the files of the sources."""
    return frozenset(path.name for path in _sources())


@cache
def _words() -> frozenset[str]:
    """Every word of the sources: a name that a page uses, JAX's too, stands somewhere."""
    return frozenset(word for path in _sources() for word in re.findall(r"\w+", path.read_text()))


def _is_path(path: str) -> bool:
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


def _is_name(name: str) -> bool:
    """Whether a dotted name is a public one of automap, a module, or defined at a module's top."""
    name = IN_A_WHEEL.sub("", name)
    if name in FOLDERS or name.removeprefix("automap.").partition(".")[0] in automap.__all__:
        return True
    *parents, last = name.split(".")
    module = ROOT.joinpath(*parents)
    if (module / last).is_dir() or (module / f"{last}.py").exists():
        return True
    files = [module.with_suffix(".py"), module / "__init__.py"]
    return any(last in _names(file) for file in files if file.exists())


@cache
def _names(file: Path) -> frozenset[str]:
    """Names that a module defines, or imports, at its top level."""
    return frozenset(_defined(ast.parse(file.read_text())))


def _defined(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_that_writes_a_page_says_which(script: Path):
    source = script.read_text()
    if "replace_table(" in source and script.name != "tables.py":
        usage = re.compile(rf"python -m scripts\.{script.stem}\b[^\n]*(?:\\\n[^\n]*)?-o (docs/\S+)")
        pages = usage.findall(ast.get_docstring(ast.parse(source)) or "")
        assert pages
        assert all((ROOT / page).exists() for page in pages)
