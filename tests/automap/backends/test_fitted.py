"""Data files of fitted numbers: complete, read as the classes say, true to what was measured."""

from dataclasses import fields, replace

import pytest

from automap.backends import BACKENDS, version_warnings
from automap.backends.fitted import (
    AdditionNumbers,
    AlignmentNumbers,
    ColumnNumbers,
    ConvolutionNumbers,
    CoreNumbers,
    FactorizationNumbers,
    ScheduleNumbers,
    SharedNumbers,
    TileNumbers,
    entries,
)
from automap.backends.xla_tpu import LIBTPU
from scripts.fit_backends import fit_errors


OF_GPUS = (
    AdditionNumbers,
    AlignmentNumbers,
    ColumnNumbers,
    ConvolutionNumbers,
    CoreNumbers,
    FactorizationNumbers,
    ScheduleNumbers,
)
FILES = {backend.fitted for backend in BACKENDS.values()} | {b.tiles for b in BACKENDS.values()}


@pytest.mark.parametrize("file", sorted(FILES, key=str), ids=lambda file: file.folder)
def test_a_number_says_its_unit_what_it_was_fitted_on_and_its_error(file):
    shared, tiles, *gpus = (
        [f.name for f in fields(c)] for c in (SharedNumbers, TileNumbers, *OF_GPUS)
    )
    # Tiles of all are libtpu's; sums over rows in blocks, work within cores, libraries,
    # rows that are not aligned, atomic additions, factorizations and schedules are those of GPUs.
    others = {LIBTPU: tiles, BACKENDS["cuda"].fitted: [name for names in gpus for name in names]}
    assert sorted(entries(file)) == sorted([*others.get(file, []), *shared])
    for entry in entries(file).values():
        assert list(entry)[:4] == ["value", "unit", "fitted_on", "error"]
        assert all(entry[name] for name in ("unit", "fitted_on", "error"))


def test_numbers_hold_where_measurements_were_kept():
    rows = {(row.name, row.device): row for row in fit_errors(LIBTPU)}
    for device in ("v5e", "v5p", "v6e"):
        assert rows["ring_flops_per_byte", device].worst == pytest.approx(0.01, abs=0.005)
    assert rows["small_tile_bytes", "v5e"].worst < 0.08
    assert rows["small_tile_bytes", "v5p"].worst == pytest.approx(0.195, abs=0.01)
    assert all(row.worst < 0.8 for row in rows.values())


def test_another_version_of_the_compiler_is_a_warning():
    assert LIBTPU.warning(None) is None
    assert LIBTPU.warning("0.0.51") is None
    warning = LIBTPU.warning("0.1.7")
    assert warning is not None
    assert warning.startswith("costs were fitted to libtpu 0.0.51, and 0.1.7 is installed")
    unfitted = replace(LIBTPU, package="", version="")
    assert unfitted.warning("0.1.7") is None
    (told,) = version_warnings(BACKENDS["tpu"], lambda package: f"{package} 9")
    assert "libtpu 9 is installed" in told
    assert not version_warnings(BACKENDS["cuda"], lambda package: "9")
