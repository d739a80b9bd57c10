"""The measures of the tree, on a tree of three files."""

from pathlib import Path

from click.testing import CliRunner
import pytest

from scripts import measure_house
from scripts.measure_house import (
    PRODUCT,
    WHOLE,
    Imports,
    Source,
    comments,
    excesses,
    formatting,
    main,
    measure,
    names,
    sizes,
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(measure_house, "ROOT", tmp_path)
    text = (
        f'"""Idea."""\n\n\ndef size_of(found):  # why\n    return found  # fmt: skip\n{"x" * 101}\n'
    )
    path = tmp_path / "one.py"
    path.write_text(text)
    return Source(path, text)


def test_what_stands_in_a_file_is_counted(source: Source):
    assert sizes([source])["files / lines"].value == "1 / 6"
    assert comments([source])["comment lines, %"].number == pytest.approx(100 / 6)
    assert formatting([source])["lines > 100 columns"].places == ("one.py:6",)
    assert formatting([source])["fmt: skip"].places == ("one.py:5",)
    assert names([source])["of_*, *_of"].places == ("one.py:4 size_of",)
    assert names([source])["found"].number == 2


def test_circles_are_sets_of_files_or_of_sibling_packages_that_reach_each_other():
    packages = {"p", "p.a", "p.b"}
    line = Imports({"p.a.x": {"p.b.y"}, "p.b.y": {"p.c"}, "p.c": set()}, packages)
    assert line.circles_of_files() == line.circles_of_packages() == []
    packed = Imports({"p.a.x": {"p.b.y"}, "p.b.z": {"p.c"}, "p.c": {"p.a.w"}}, packages)
    assert packed.circles_of_files() == []
    assert packed.circles_of_packages() == [["p.a", "p.b", "p.c"]]
    files = Imports({"p.c": {"p.d"}, "p.d": {"p.e"}, "p.e": {"p.c"}}, packages)
    assert files.circles_of_files() == [["p.c", "p.d", "p.e"]]


def test_importers_are_modules_and_not_packages():
    graph = Imports({"p": {"p.x"}, "p.y": {"p.x", "p"}, "p.x": set()}, {"p"})
    assert graph.importers == {"p.x": 1}


def test_a_folder_is_a_column():
    run = CliRunner().invoke(main, ["rl"], catch_exceptions=False)
    assert run.output.splitlines()[0].split() == ["rl"]
    assert "modules with one importer" in run.output


def test_the_house_is_kept():
    assert excesses(measure(PRODUCT), measure(WHOLE, [formatting])) == []
