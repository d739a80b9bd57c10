"""What stands around the code: workflows run the Makefile's commands, forms ask, versions have
changes.
"""

from pathlib import Path
import re
import tomllib

import pytest

import automap


ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"


def _yaml(path: Path):
    return pytest.importorskip("yaml").safe_load(path.read_text())


def test_workflows_run_commands_of_the_makefile_and_nothing_else():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    ran = set()
    for path in (GITHUB / "workflows").glob("*.yml"):
        for job in _yaml(path)["jobs"].values():
            commands = [step["run"] for step in job["steps"] if "run" in step]
            matrix = job.get("strategy", {}).get("matrix", {}).get("command", [])
            ran |= {c.replace("${{ matrix.command }}", m) for c in commands for m in matrix or [""]}
    assert {"make test", "make demo"} <= ran
    assert {command.split(" ", 1)[1] for command in ran} <= targets
    assert all(command.startswith("make ") for command in ran)


def test_issue_forms_ask_for_what_a_reader_needs():
    forms = [p for p in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml"]
    assert len(forms) >= 2
    for path in forms:
        form = _yaml(path)
        assert form["name"] and form["description"], path
        names = [field["id"] for field in form["body"]]
        assert len(set(names)) == len(names), path
        assert any(field.get("validations", {}).get("required") for field in form["body"]), path


def test_the_version_has_its_changes():
    assert f"## {automap.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_package_says_that_it_is_typed_and_for_which_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Typing :: Typed" in project["classifiers"]
    assert all((ROOT / name / "py.typed").exists() for name in ("automap", "hlo_tools", "rl"))
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in project["classifiers"]
