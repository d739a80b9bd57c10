"""The policy file: a value of each threshold, with why it is there and what it was set with."""

from dataclasses import fields
from importlib.resources import files
from pathlib import Path
import tomllib

import pytest

import automap
from automap.policy import Policy, default_policy


ROOT = Path(automap.__file__).parents[1]
ENTRIES = tomllib.loads(files("automap").joinpath("policy.toml").read_text("utf-8"))


def test_file_and_class_have_the_same_thresholds():
    assert list(ENTRIES) == [field.name for field in fields(Policy)]
    for field in fields(Policy):
        assert type(getattr(default_policy(), field.name)) is field.type, field.name


@pytest.mark.parametrize("name", ENTRIES)
def test_a_threshold_says_what_it_is_and_what_it_was_set_with(name):
    entry = ENTRIES[name]
    assert list(entry) == ["value", "unit", "why", "set_with", "models"]
    assert all(entry.values()) and entry["why"].endswith(".")
    script = entry["set_with"].split()[0]
    assert entry["set_with"] == "not kept" or (ROOT / script).is_file()
