"""Machine code that is kept on disk is of the sources as they are now."""

import os
from pathlib import Path
import subprocess
import sys

import pytest


ROOT = Path(__file__).resolve().parents[2]
_COMPILED = """
from automap.numba_jit import compiled, inner
from package.deep.numbers import ADDED, Pair
from package.other import twice

@inner
def through(pair: Pair) -> float:
    return twice(pair.x) + ADDED

@compiled
def outer(pair: Pair) -> float:
    return through(pair)
"""
_NUMBERS = """
from typing import NamedTuple

class Pair(NamedTuple):
    x: float
    y: float

ADDED = {added}

def plain(x):
    return {factor} * x
"""
_OTHER = """
from automap.numba_jit import inner
from package.deep.numbers import plain

twice = inner(plain)
"""
_RUN = """
from package.folder.compiled import outer
from package.deep.numbers import Pair
print(outer(Pair(1.0, 2.0)), len(outer.stats.cache_hits))
"""


@pytest.fixture
def package(tmp_path):
    """A compiled function, one that it calls, and what that calls, in three folders."""
    for name in ("package", "package/folder", "package/deep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "package/folder/compiled.py").write_text(_COMPILED)
    (tmp_path / "package/other.py").write_text(_OTHER)
    (tmp_path / "package/deep/numbers.py").write_text(_NUMBERS.format(factor="2.0", added="0.0"))
    return tmp_path


def outputs(folder):
    """(result, how many compilations were read from disk)."""
    run = subprocess.run(
        [sys.executable, "-B", "-c", _RUN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
    )
    result, hits = run.stdout.split()
    return float(result), int(hits)


@pytest.mark.parametrize(("change", "after"), [(("3.0", "0.0"), 3.0), (("2.0", "5.0"), 7.0)])
def test_an_edit_of_what_it_calls_is_never_run_stale(package, change, after):
    assert outputs(package) == (2.0, 0)
    assert outputs(package) == (2.0, 1)
    edited = package / "package/deep/numbers.py"
    edited.write_text(_NUMBERS.format(factor=change[0], added=change[1]))
    # Whatever the time that the edit says: a copy may keep an old one.
    os.utime(edited, (1e9, 1e9))
    assert outputs(package) == (after, 0)
    assert outputs(package) == (after, 1)
