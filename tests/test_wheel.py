"""What is installed: one package, whatever a user's own folders are called, from a wheel or from a
clone beside a script.
"""

import ast
from collections.abc import Iterator
import os
from pathlib import Path
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

from tests.readme import check_first_steps


ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("automap", "hlo_tools", "rl")
# A user's project: own packages with the names of this repository's, and a step that uses them.
PROJECT = {
    "rl/__init__.py": "WHOSE = 'the user'\n",
    "hlo_tools/__init__.py": "WHOSE = 'the user'\n",
    "models/net.py": "WHOSE = 'the user'\n",
    "errors.py": "raise RuntimeError('a file of the user, imported by what is not his')\n",
    "train.py": """
import jax
import jax.numpy as jnp
import hlo_tools, models.net, rl

def step(params, batch):
    def loss(params):
        return jnp.mean((jnp.tanh(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)
    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

def small(batch=32):
    assert {hlo_tools.WHOSE, models.net.WHOSE, rl.WHOSE} == {"the user"}
    f = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return step, ({"up": f(64, 256), "down": f(256, 8)}, {"x": f(batch, 64), "y": f(batch, 8)})
""",
    "script.py": """
import sys
import jax
import automap
from train import small

step, args = small()
plan = automap.plan(step, args, topology="v5e:2x4", strategy=sys.argv[1], budget=5)
plan.save("plan.json")
open("step.mlir", "w").write(jax.jit(step).lower(*args).as_text())
import hlo_tools, models.net, rl
assert {hlo_tools.WHOSE, models.net.WHOSE, rl.WHOSE} == {"the user"}
assert automap.Plan.load("plan.json") == plan
print(automap.__file__, plan.search.strategy)
""",
    "test_train.py": """
import automap
import rl
from train import small

def test_it_plans():
    plan = automap.plan(*small(), topology="v5e:2x4", preset="zero-3")
    assert rl.WHOSE == "the user"
    assert plan.predicted.fits
""",
}


def _run(command: list[str], folder: Path, **environment: str) -> str:
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def _files(folder: Path) -> Iterator[Path]:
    kept = {".py", ".json", ".safetensors", ".toml", ".typed", ".js", ".css", ".html", ".txt"}
    return (p.relative_to(folder) for p in folder.rglob("*") if p.suffix in kept)


def test_a_wheel_has_one_package_with_every_module_and_data_file(built: Path):
    assert [path.name for path in built.iterdir()] == ["automap"]
    expected = {Path(name) / path for name in PACKAGES for path in _files(ROOT / name)}
    inside = {path if path.parts[0] == "automap" else "automap" / path for path in expected}
    assert set(_files(built)) == inside


def test_no_module_of_a_wheel_imports_a_name_that_is_the_users(built: Path):
    for path in built.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            roots = {name.partition(".")[0] for name in imported}
            assert not roots & {"hlo_tools", "rl", "models", "tests", "scripts"}, path


def test_a_users_packages_of_the_same_names_stay_the_users(built: Path, project: Path):
    said = _run([sys.executable, "script.py", "greedy"], project, PYTHONPATH=str(built))
    assert said.split() == [str(built / "automap/__init__.py"), "greedy"]
    command = [sys.executable, "-m", "automap", "explain", "plan.json"]
    assert "predicted step" in _run(command, project, PYTHONPATH=str(built))


# Installed for real


def _sources(folder: Path) -> Path:
    """A copy of what git would clone, as far as it is needed to build."""
    folder.mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in (*PACKAGES, "models", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _environment(folder: Path, *requirement: str) -> Path:
    """The interpreter of a new virtual environment; what automap depends on is this one's."""
    venv.create(folder, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--ignore-installed",
            *requirement,
        ],
        folder,
    )
    return python


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with a built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = "-m pip wheel -q --no-deps --no-index --no-build-isolation -w .. ."
    _run([sys.executable, *command.split()], _sources(folder / "sources"))
    (wheel,) = folder.glob("jax_automap-*.whl")
    return _environment(folder / "venv", str(wheel))


@pytest.mark.slow
def test_an_installed_wheel_leaves_a_users_packages_alone(installed: Path, project: Path):
    pytest.importorskip("torch")
    package, strategy = _run([str(installed), "script.py", "rainbow"], project).split()
    assert Path(package).is_relative_to(installed.parents[1])
    assert strategy == "rainbow"
    command = "plan train:small --topology v5e:2x4 --strategy rainbow --budget 5 --arg batch=64"
    automap = str(installed.parent / "automap")
    assert "found by rainbow" in _run([automap, *command.split()], project)
    program = "plan step.mlir --topology v5e:2x4 --preset data-parallel"  # its parser is a process
    assert "plan for step.mlir" in _run([automap, *program.split()], project)
    verify = "verify plan.json --target train:small --compiler cpu --no-cache"
    assert "outputs agree" in _run([automap, *verify.split()], project)
    said = _run([str(installed), "-m", "pytest", "-q", "-p", "no:cacheprovider"], project)
    assert "1 passed" in said


@pytest.mark.slow
def test_the_readme_begins_with_what_a_wheel_can_do(installed: Path, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    check_first_steps(
        tmp_path, lambda words: _run([str(installed.parent / words[0]), *words[1:]], tmp_path)
    )


@pytest.mark.slow
def test_an_editable_clone_called_automap_beside_a_script_is_the_package(tmp_path: Path):
    clone = _sources(tmp_path / "automap")
    python = _environment(tmp_path / "venv", "-e", str(clone))
    for name in ("models", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("WHOSE = 'the user'\n")
    code = "import automap, models.mine, scripts.mine; print(automap.__file__, automap.Plan)"
    (tmp_path / "script.py").write_text(code)
    said = _run([str(python), "script.py"], tmp_path)
    assert said.startswith(str(clone / "automap" / "__init__.py"))
    assert str(clone / "automap") in _run([str(python), "-c", code], tmp_path)
    assert "0.1.0" in _run([str(python.parent / "automap"), "--version"], tmp_path)
