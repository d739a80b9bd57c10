"""The table "Where do I change what" of CONTRIBUTING names files and registries that exist."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
import re
from typing import Any

import click
import pytest


ROOT = Path(__file__).resolve().parents[1]
MOST_FILES = 3
CHANGES = {
    "GPU",
    "sharding rule",
    "pipeline schedule",
    "preset",
    "strategy",
    "field of the plan file",
    "option of the command",
    "text of a compiler",
}
_REGISTRY = re.compile(r"`((?:automap|hlo_tools)[\w.]*\.(\w+))`(?:: `([\w-]+)`)?")


def _rows() -> list[list[str]]:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where do I change what")[2]
    lines = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


ROWS = _rows()


def test_every_change_that_is_often_asked_for_has_a_row():
    missing = [change for change in CHANGES if not any(change in row[0] for row in ROWS)]
    assert not missing


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_change_is_made_in_a_few_places_that_exist(row):
    _, files, registries, tests = row
    paths = re.findall(r"`([\w./]+)`", files)
    assert 1 <= len(paths) <= MOST_FILES
    assert not [
        path for path in (*paths, *re.findall(r"`(tests/[\w./]+)`", tests)) if not _is(path)
    ]
    named = _REGISTRY.findall(registries)
    assert named
    for dotted, _, entry in named:
        registry = _value(dotted)
        assert not entry or entry in _entries(registry), f"{dotted} has no {entry}"


def _is(path: str) -> bool:
    return (ROOT / path).exists()


def _value(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def _entries(registry: Any) -> Sequence[str]:
    """Names of what a registry has: keys, names of its rows, fields, or commands."""
    if isinstance(registry, click.Group):
        return list(registry.commands)
    if is_dataclass(registry):
        return list(registry.__dataclass_fields__)
    return [getattr(entry, "name", entry) for entry in registry]
