"""The package's face: every public name, loaded when it is first used."""

import ast
import importlib
from pathlib import Path
import pickle
import subprocess
import sys

import pytest

import automap
from automap import errors


ROOT = Path(automap.__file__).parents[1]


def _fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def _names_for_type_checkers() -> dict[str, str]:
    """Name -> module, as written under TYPE_CHECKING."""
    tree = ast.parse((ROOT / "automap/__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.asname or alias.name: node.module or ""
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_what_type_checkers_see_is_what_there_is():
    seen = _names_for_type_checkers()
    assert sorted(seen) == automap.__all__
    for name, module in seen.items():
        assert getattr(automap, name) is getattr(importlib.import_module(module), name), name
    assert [name for name in dir(automap) if not name.startswith("__")] == automap.__all__


def test_every_error_and_warning_is_public():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    raised = {name for name in classes if issubclass(getattr(errors, name), Exception)}
    assert raised <= set(automap.__all__)


SHARED_NAMES = ("plan", "simulate", "verify")


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_a_function_stays_where_a_module_has_its_name(name):
    code = f"import automap.{name}; import automap; print(type(automap.{name}).__name__)"
    assert _fresh(code) == "function"


def test_functions_stay_where_modules_of_their_names_are_loaded_later():
    kinds = ", ".join(f"type(automap.{name}).__name__" for name in SHARED_NAMES)
    code = f"import automap; automap.Plan; automap.parallelize; print({kinds})"
    assert _fresh(code) == "function function function"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'automap' has no attribute 'plam'"):
        automap.plam  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'plam'"):
        exec("from automap import plam")


def test_a_star_import_gives_the_public_names():
    names = {}
    exec("from automap import *", names)
    assert set(automap.__all__) <= set(names)


def test_a_test_may_replace_a_function_and_put_it_back(monkeypatch):
    before = automap.plan
    with monkeypatch.context() as patch:
        patch.setattr(automap, "plan", 3)
        assert automap.plan == 3
    assert automap.plan is before


def test_public_functions_and_classes_can_be_pickled():
    for name in automap.__all__:
        value = getattr(automap, name)
        assert pickle.loads(pickle.dumps(value)) is value, name


def test_the_version_is_that_of_the_package():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "automap.__version__"}
    assert _fresh("import automap; print(automap.__version__)") == automap.__version__
    run = subprocess.run(
        [sys.executable, "-m", "automap", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == f"automap, version {automap.__version__}"
