"""The plan file on disk: its layout, what is refused, and writing that leaves no half file."""

import os
from pathlib import Path

import pytest

from automap.api.plan import Plan
from automap.errors import PlanError
from automap.plan.file import parse


SAMPLE = Path(__file__).with_name("plan_sample.json")


def test_saving_writes_the_documented_text(tmp_path):
    path = tmp_path / "plan.json"
    Plan.load(SAMPLE).save(path)
    assert path.read_bytes() == SAMPLE.read_bytes()
    assert os.listdir(tmp_path) == ["plan.json"]


def test_saving_replaces_what_a_link_points_to(tmp_path):
    (tmp_path / "plan.json").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("plan.json")
    Plan.load(SAMPLE).save(link)
    assert link.is_symlink()
    assert Plan.load(tmp_path / "plan.json") == Plan.load(SAMPLE)


@pytest.mark.parametrize(
    ("step", "error", "raised"),
    [
        ("fsync", OSError(28, "No space left on device"), PlanError),
        ("replace", PermissionError(13, "Permission denied"), PlanError),
        ("fsync", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, step, error, raised):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(raised):
        Plan.load(SAMPLE).save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("absent/plan.json", r"absent/plan\.json': cannot be written: No such file"),
        (".", r"is no regular file; allowed: the name of a file"),
        ("a\0b", r"cannot be written: .*null"),
        ("x" * 300, r"cannot be written: File name too long"),
    ],
)
def test_refuses_places_that_take_no_file(tmp_path, name, match):
    with pytest.raises(PlanError, match=match):
        Plan.load(SAMPLE).save(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("absent.json", r"absent\.json': No such file or directory; allowed: a file written by"),
        (".", r"is a folder; allowed"),
        ("a\0b", r"null"),
    ],
)
def test_refuses_files_that_cannot_be_read(tmp_path, name, match):
    with pytest.raises(PlanError, match=match):
        Plan.load(f"{tmp_path}/{name}")


# 3.11 parses "1" * 5000 with a ValueError of its own.
NOT_JSON = [
    "",
    "{",
    "[1,]",
    "nul",
    "\x00",
    "[" * 100_000,
    '{"a":' * 100_000,
    "1" * 5000,
]


@pytest.mark.parametrize("content", NOT_JSON, ids=range(len(NOT_JSON)))
def test_refuses_what_is_not_json(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(PlanError, match=r"plan\.json'.*allowed: a file written by `automap plan"):
        Plan.load(path)


@pytest.mark.parametrize("depth", [10, 300, 900])
def test_refuses_deep_nesting_where_an_object_is_handed_on(tmp_path, depth):
    path = tmp_path / "plan.json"
    nested = "[" * depth + "]" * depth
    path.write_text(replaced('"name": "v5e:2x4"', f'"name": {nested}'))
    with pytest.raises(PlanError, match=r"topology|nested too deeply"):
        Plan.load(path)


def test_refuses_every_truncation_and_bytes_that_are_no_text():
    content = SAMPLE.read_bytes().rstrip()
    for length in range(0, len(content), 7):
        with pytest.raises(PlanError, match="no valid JSON"):
            parse(content[:length])
    for junk in (b"\xff\xfe\x00", b"\x80abc", b'"\xff"'):
        with pytest.raises(PlanError, match="no valid JSON"):
            parse(junk)


def replaced(old, new):
    content = SAMPLE.read_text()
    assert content.count(old) >= 1, old
    return content.replace(old, new, 1)


REFUSALS = {
    "format": ('"automap-plan"', '"other"', r"format: got 'other'; .*automap-plan"),
    "version": ('"version": 1', '"version": 2', r"version: got 2; allowed: 1; upgrade automap"),
    "no integer": ('"version": 1', '"version": 1.0', r"version: got 1\.0; allowed: 1; upgrade"),
    "no bool": ('"version": 1', '"version": true', r"version: got True"),
    "pipeline": (
        '"pipeline": null',
        '"pipeline": {"schedule": "1f1b", "microbatches": 2, "stages": []}',
        r"pipeline\.stages: got \[\]; allowed: at least one stage",
    ),
    "placement": (
        '"placement": null',
        '"placement": {"stages": []}',
        r"placement\.stages: unknown field",
    ),
    "missing": ('"mesh": {"axes"', '"mosh": {"axes"', r"'.*: mosh: unknown field; .*workload, "),
    "missing in a row": ('"dtype": "bfloat16", ', "", r"inputs\[0\]\.dtype: missing; required: "),
    "unknown in a row": ('"dtype"', '"type": 1, "dtype"', r"inputs\[0\]\.type: unknown field; "),
    "repeated key": (
        '"dtype"',
        '"path": "x", "dtype"',
        r"inputs\[0\]: got an object that has the key 'path' twice; allowed: an object with the",
    ),
    "repeated key on top": ('"version"', '"format": 1, "version"', r"key 'format' twice"),
    "repeated key below": (
        '"memory_bytes": ',
        '"memory_bytes": 1, "memory_bytes": ',
        r"topology\.device.*key 'memory_bytes' twice",
    ),
    "dtype": ('"bfloat16"', '"bf16"', r"inputs\[0\]\.dtype: unknown dtype 'bf16'; .*bfloat16"),
    "role": ('"parameter"', '"weight"', r"inputs\[0\]\.role: got 'weight'; .*parameter \| "),
    "nan": ("0.0123", "NaN", r"predicted\.step_seconds: got nan; allowed: a finite number >= 0"),
    "infinite": ("0.0123", "1e999", r"predicted\.step_seconds: got inf"),
    "huge": ("0.0123", "1" + "0" * 400, r"predicted\.step_seconds: got 1000"),
    "negative": ("3221225472", "-1", r"predicted\.peak_bytes: got -1; allowed: an integer from 0"),
    "negative seconds": ("0.0123", "-0.5", r"predicted\.step_seconds: got -0\.5; .*>= 0"),
    "flag for integer": ("3221225472", "true", r"predicted\.peak_bytes: got True; .*an integer"),
    "float for integer": ("3221225472", "1.5", r"predicted\.peak_bytes: got 1\.5; .*an integer"),
    "text for number": ("0.0123", '"fast"', r"predicted\.step_seconds: got 'fast'"),
    "number for flag": ('"fits": true', '"fits": 1', r"predicted\.fits: got 1; .*true \| false"),
    "number for text": ('"dot.3"', "3", r"conflicts\[0\]\.at: got 3; allowed: a text"),
    "surrogate": ('"dot.3"', '"\\ud800"', r"conflicts\[0\]\.at: got '.ud800'"),
    "digest": ('"0123', '"X123', r"workload\.hlo_sha256: got 'X123.*64 digits"),
    "contradicting constraints": (
        '"constraints": [',
        '"constraints": [{"value": "x", "at": "dot.5", "spec": [["data"]]}, '
        '{"value": "x", "at": "dot.5", "spec": [["model"]]}, ',
        r"constraints\[1\]\.spec: got .*model.*; allowed: one sharding for 'dot\.5', which is",
    ),
    "axis": ('["data", 2]', '["data"]', r"mesh\.axes\[0\]: got \['data'\]; .*a list of 2 entries"),
    "more devices than can be listed": (
        '["data", 2]',
        f'["data", {2**62}]',
        r"mesh\.axes: got .*; allowed: axes whose product is 8",
    ),
    "an order of more devices than can be listed": (
        '["data", 2], ["model", 4]], "devices": null',
        f'["data", {2**62}], ["model", 4]], "devices": [0, 1]',
        r"mesh\.devices: got \[0, 1\]; allowed: null, or each device from 0 to",
    ),
    "spec": ('["model"]', '["modle"]', r"inputs\[0\]\.spec\[1\]\[0\]: unknown axis 'modle'; mesh"),
}


@pytest.mark.parametrize(("old", "new", "match"), REFUSALS.values(), ids=REFUSALS)
def test_refuses_with_the_path_of_the_field(tmp_path, old, new, match):
    path = tmp_path / "plan.json"
    path.write_text(replaced(old, new))
    with pytest.raises(PlanError, match=match) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"plan file {str(path)!r}: ")
