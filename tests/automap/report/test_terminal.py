"""What comes from files cannot command a terminal, and JSON stays JSON."""

import json

from click.testing import CliRunner
from hypothesis import given, strategies as st
import pytest

from automap.cli import main
from automap.terminal import printable, say_json
from tests.automap.plan.test_file import SAMPLE


# Clear the screen; turn the line around; a title of the window; C1's escape; a new line of its own;
# zero width.
HOSTILE = "\x1b[2J\u202egnp.exe\x1b]0;owned\x07\x9b31m\r\x7f\u200b"
SHOWN = r"\x1b[2J\u202egnp.exe\x1b]0;owned\x07\x9b31m\r\x7f\u200b"


def test_what_a_terminal_obeys_is_shown_as_its_number():
    assert printable(HOSTILE) == SHOWN
    assert printable("weights/ä/日本/\tx\n") == "weights/ä/日本/\tx\n"


@given(st.text())
def test_every_character_that_is_left_is_visible(text):
    assert all(c.isprintable() or c in "\n\t" for c in printable(text))


def test_json_is_ascii_without_control_characters(capsys):
    say_json({"name": HOSTILE})
    said = capsys.readouterr().out
    assert json.loads(said) == {"name": HOSTILE}
    assert all(" " <= c <= "~" or c == "\n" for c in said)


def _plan_file(tmp_path):
    """A plan with hostile text wherever there is text that no check narrows."""
    data = json.loads(SAMPLE.read_text())
    data["workload"]["target"] = f"m:{HOSTILE}"
    data["workload"]["arguments"] = [["name", HOSTILE]]
    data["warnings"] = [HOSTILE]
    for row in data["decisions"]:
        row |= {"group": f"{row['group']}{HOSTILE}", "reason": HOSTILE, "covers": [HOSTILE]}
    for row in data["conflicts"]:
        row |= {"group": HOSTILE, "with": HOSTILE, "at": HOSTILE}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    return path


TOML = """
name = "%s"
platform = "cpu"
"""


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["explain", "PLAN"], 0),
        (["explain", "PLAN", "group"], None),
        (["explain", "PLAN", "absent"], 2),
        (["explain", "PLAN", HOSTILE], None),
        (["explain", "PLAN", str(SAMPLE)], 0),
        (["simulate", "PLAN"], 2),
        (["verify", "PLAN", "--compiler", "cpu"], 2),
        (["topologies", HOSTILE.replace("\x9b", "")], 2),
        (["plan", f"absent{HOSTILE}:f", "--topology", "v5e:2x4"], 2),
        (["plan", HOSTILE, "--topology", "v5e:2x4"], 2),
        ([HOSTILE], 2),
    ],
)
def test_no_command_hands_on_what_a_terminal_obeys(command, status, tmp_path):
    path = _plan_file(tmp_path)
    done = CliRunner().invoke(main, [str(path) if a == "PLAN" else a for a in command])
    assert status is None or done.exit_code == status
    assert all(c.isprintable() or c in "\n\t" for c in done.output), ascii(done.output)


def test_the_name_of_a_machine_in_a_file_is_shown_safely(tmp_path):
    written = CliRunner().invoke(main, ["topologies", "2x8xv100"])
    assert written.exit_code == 0
    import tomli_w

    from automap.topology import get_topology

    path = tmp_path / "own.toml"
    machine = get_topology("2x8xv100").to_dict() | {"name": f"[bold]{HOSTILE}"}
    path.write_text(tomli_w.dumps(machine))
    done = CliRunner().invoke(main, ["topologies", str(path)])
    assert done.exit_code == 0, done.output
    assert f"[bold]{SHOWN}" in done.output
    assert all(c.isprintable() or c in "\n\t" for c in done.output), ascii(done.output)
