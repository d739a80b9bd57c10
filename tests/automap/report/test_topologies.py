"""`automap topologies`: the table, one machine in full, and what is refused."""

import re

from click.testing import CliRunner
import pytest

from automap.cli import main
from automap.topology import catalogue_entries, get_machine


def _run(*arguments, columns=None):
    # A process of pytest-xdist has a width of its own.
    return CliRunner().invoke(main, ["topologies", *arguments], env={"COLUMNS": columns})


def test_the_table_has_a_line_for_every_family_and_no_frames_in_a_pipe():
    lines = _run().stdout.splitlines()
    assert len(lines) == 1 + len(catalogue_entries())
    for entry, line in zip(catalogue_entries(), lines[1:], strict=True):
        assert line.startswith(f"{entry.pattern}  ")
    assert max(map(len, lines)) <= 80
    assert "ici 4x4 line 100 GB/s" in _run(columns="1000").stdout


@pytest.mark.parametrize("entry", catalogue_entries(), ids=lambda entry: entry.example)
def test_every_number_of_a_machine_is_shown_with_a_source(entry):
    done = _run(entry.example)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = [re.split("  +", line.rstrip()) for line in done.stdout.splitlines()]
    numbers = [row for row in rows if re.search("_bytes|_per_s|_seconds|_efficiency", row[0])]
    assert len(numbers) >= 6
    assert [row for row in numbers if len(row) != 3] == []
    # All that are cited are listed below, and no others.
    assert {row[2] for row in numbers} <= {row[0] for row in rows if len(row) == 2}


def test_sources_are_listed_whole_once_and_in_order():
    listed = _run("v5p:4x4x4", columns="1000").stdout.partition(" sources")[2].splitlines()[1:]
    texts = [line.strip().partition("  ")[2].strip() for line in listed]
    machine = get_machine("v5p:4x4x4")
    said = [*machine.device.source, *(s for level in machine.levels for s in level.source)]
    assert [line.split()[0] for line in listed] == [f"[{i}]" for i in range(1, len(listed) + 1)]
    assert len(set(texts)) == len(texts) > 5
    assert set("; ".join(texts).split("; ")) == set(
        "; ".join(f"{s.document}: {s.note}" for s in said).split("; ")
    )


def test_one_machine_says_whose_it_is_and_what_lies_on_it():
    shown = _run("flexflow-k80").stdout
    assert "16 nodes with 4 K80 GPUs each" in " ".join(shown.split())
    assert "16x2x2" in shown
    assert "level 0, pcie-pair (innermost)" in shown


def test_a_graph_shows_its_routes():
    rows = [line.split() for line in _run("haswell-2xk80").stdout.splitlines()]
    assert ["gpu:0", "gpu:1", "12", "GB/s", "5.7", "us", "pcie:0,", "pcie:1"] in rows


def test_an_unknown_machine_is_refused_with_what_is_allowed():
    done = _run("8xb300")
    assert done.exit_code == 2
    assert "allowed GPUs: k80, p100" in done.stderr


def test_no_name_is_cut_on_a_terminal_of_eighty_columns():
    shown = CliRunner().invoke(main, ["topologies"], env={"COLUMNS": "80"}).stdout
    assert "\u2026" not in shown
    for entry in catalogue_entries():
        assert f"{entry.pattern} " in shown and f" {entry.example} " in shown


@pytest.mark.parametrize("columns", [0, 10, 60])
def test_a_narrow_terminal_cuts_no_cell(columns):
    compared = ["compare", "tests.steps:mlp", "--topology", "v5e:2x2", "--strategy", "greedy"]
    env = {"COLUMNS": str(columns)}
    shown = CliRunner().invoke(main, compared, env=env).stdout
    # What is too long for its column goes on in the next line of the same row.
    names = [line.split("\u2502")[1].strip() for line in shown.splitlines() if "\u2502" in line]
    assert "data-parallel" in "".join(names) and "\u2026" not in shown
    assert "v5e:4x4" in CliRunner().invoke(main, ["topologies"], env=env).stdout


@pytest.mark.parametrize("columns", [60, 90])
def test_a_table_in_a_pipe_is_as_wide_as_columns_says(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = CliRunner().invoke(main, ["topologies"]).output.splitlines()
    assert max(map(len, narrow)) <= columns
    compared = ["compare", "tests.steps:mlp", "--topology", "v5e:2x2", "--strategy", "greedy"]
    table = CliRunner().invoke(main, compared).output.splitlines()
    assert max(map(len, table)) <= columns
    monkeypatch.delenv("COLUMNS")
    usual = CliRunner().invoke(main, ["topologies"]).output.splitlines()
    assert max(map(len, usual)) <= 80
