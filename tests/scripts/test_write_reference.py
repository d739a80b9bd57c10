from pathlib import Path

import pytest

from scripts import write_reference


FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"
WRITTEN = {
    "command.md": write_reference.command_page,
    "options.md": write_reference.options_page,
    "plan-file.md": write_reference.plan_page,
    write_reference.SCHEMA_NAME: write_reference.schema_text,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_reference_is_what_the_code_says(name):
    """Lines may break elsewhere: another version of click breaks them its own way."""
    again = "python -m scripts.write_reference -o docs/reference"
    assert WRITTEN[name]().split() == (FOLDER / name).read_text().split(), again


def test_the_installed_schema_is_the_same_file():
    shipped = write_reference.SHIPPED_SCHEMA.read_text()
    assert shipped == (FOLDER / write_reference.SCHEMA_NAME).read_text()
