"""What importing a package pulls in, seen from a fresh interpreter."""

import os
from pathlib import Path
import subprocess
import sys

import pytest


ROOT = Path(__file__).resolve().parents[1]
_PROBE = """
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
print(" ".join(sorted({forbidden!r} & sys.modules.keys())))
"""


def _modules(package: str, *without: str) -> list[str]:
    """Every module of `package` by dotted name, leaving out the subpackages `without`."""
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.startswith(without)]


def _loaded(modules: list[str], forbidden: set[str]) -> list[str]:
    """Those of `forbidden` that importing `modules` has loaded."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROBE.format(modules=modules, forbidden=forbidden)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


# Environments of agents are left out of what is tested: their strategies import them when they run.
LEARNING = {"torch", "flax", "optax", "rl", "models"}
# protobuf is imported by the first proto that is read.
SLOW = {"jax", "jaxlib", "scipy", "google.protobuf"}


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (["automap"], LEARNING),
        (
            _modules(
                "automap",
                "automap.search",
                "automap.pipeline.online",
                "automap.placement.colocrl",
                "automap.placement.measured",
                "automap.placement.policies",
                "automap.placement.training",
            ),
            LEARNING,
        ),
        (_modules("hlo_tools"), LEARNING | SLOW | {"automap"}),
        (["rl"], {"jax", "automap", "hlo_tools", "models"}),
    ],
    ids=["import automap", "all of automap", "all of hlo_tools", "import rl"],
)
def test_import_loads_nothing_it_should_not(modules: list[str], forbidden: set[str]):
    assert _loaded(modules, forbidden) == []


# What a user waits for before anything is planned.
HEAVY = LEARNING | SLOW | {"numba", "llvmlite", "rich", "numpy"}


def test_the_package_and_its_help_load_nothing_heavy():
    assert _loaded(["automap"], HEAVY | {"click"}) == []
    assert _loaded(["automap.cli"], HEAVY) == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["plan", "-h"], ["plan"]], ids=" ".join
)
def test_the_command_answers_before_it_loads_anything_heavy(arguments: list[str]):
    code = (
        f"import sys\nfrom automap.cli import main\ntry:\n    main({arguments!r})\nexcept "
        "SystemExit:\n"
        f"    print('loaded:', *sorted({HEAVY!r} & sys.modules.keys()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout.splitlines()[-1].strip() == "loaded:", run.stdout + run.stderr


def test_the_probe_sees_what_is_loaded():
    assert _loaded(["json", "automap.errors"], {"json", "automap", "torch"}) == ["automap", "json"]
