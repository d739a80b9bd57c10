from pathlib import Path

import pytest

from scripts import write_reference


FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"
WRITTEN = {
    "command.md": write_reference.command_page,
    "plan-file.md": write_reference.plan_page,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_reference_is_what_the_code_says(name):
    """Lines may break elsewhere: another version of click breaks them its own way."""
    again = "python -m scripts.write_reference -o docs/reference"
    assert WRITTEN[name]().split() == (FOLDER / name).read_text().split(), again
