"""The measured factorizations that come with the scripts are read, split in two and predicted."""

from pathlib import Path

from click.testing import CliRunner
import pytest

from automap.backends import backend_for
from scripts import compare_factorizations as script


ROWS = Path(script.__file__).parent / "data" / "factorizations.csv"
NUMBERS = backend_for("cuda").factorization_numbers


def test_sizes_of_a_call_are_of_both_halves_by_turns():
    rows = [row for row in script.measured_rows(ROWS) if row.call == "lu of many"]
    halves = {row.columns: row.half for row in rows}
    assert [halves[size] for size in sorted(halves)] == ["fitted", "judged"] * 2 + ["fitted"]


def test_every_call_of_the_backend_was_measured():
    names = {name for row in script.measured_rows(ROWS) for name in row.names}
    assert names == {row[0] for row in NUMBERS.factorization_calls}


def test_calls_that_many_rows_judge_are_near_them():
    rows = [r for r in script.measured_rows(ROWS) if r.half == "judged"]
    for call in ("lu", "lu of many", "eigenvectors", "singular vectors by jacobi"):
        off = script.errors([row for row in rows if row.call == call], NUMBERS)
        assert sorted(map(abs, off))[len(off) // 2] < 0.15


@pytest.mark.parametrize(("shown", "header"), [("tables", "median error"), ("fit", "FLOPs of a")])
def test_the_command_shows_tables_and_fits(shown, header, tmp_path):
    few = tmp_path / "few.csv"
    lines = ROWS.read_text().splitlines()
    few.write_text("\n".join([lines[0], *(x for x in lines if x.startswith("cholesky,"))]))
    result = CliRunner().invoke(script.main, [str(few), "--show", shown])
    assert result.exit_code == 0
    assert header in result.output


def test_an_unknown_call_is_told_with_those_that_are_known(tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text(ROWS.read_text().replace("cholesky,", "choleski,", 1))
    result = CliRunner().invoke(script.main, [str(bad)])
    assert result.exit_code == 1
    assert "choleski" in result.output
    assert "triangular solve" in result.output
