"""Rows of the published steps: read and refused, laid out, and in halves that do not change."""

from collections import Counter
from dataclasses import replace
import hashlib

import click
from hypothesis import given, strategies as st
import pytest

from models.decoder import parameter_count
from scripts.compare_published import EFFICIENCIES, group_name, read_efficiencies
from scripts.published_rows import ROWS, Row, read_rows, why_not
from scripts.published_runs import decoder_as_run, published_decoder


ROW = Row(
    source="vTrain",
    model="GPT h1024 L12 a16",
    chips=8,
    chip="A100",
    precision="fp16?",
    batch=16,
    length=1024,
    parallelism="TP2 DP2 PP2 MBS4 1F1B",
    remat="full",
    step_seconds=0.5,
    url="here",
)


def test_every_row_has_a_family_and_is_expressed_or_has_a_reason():
    rows = read_rows()
    reasons = Counter(why_not(row) for row in rows)
    assert len(rows) == 1008
    assert reasons[None] == 887
    for row in rows:
        if why_not(row) is None:
            layout = row.layout()
            assert layout.replicas * layout.tensor * layout.stages == row.chips
            assert layout.replicas * layout.microbatch * layout.microbatches == row.batch
            # Raises for a word of remat that its family does not explain.
            decoder_as_run(row.model, row.family, row.remat)


def test_the_halves_are_those_of_a_hash_of_what_a_row_states():
    rows = [row for row in read_rows() if why_not(row) is None]
    for row in rows:
        digest = hashlib.sha256(row.key.encode()).digest()
        assert row.is_held_out == (digest[0] % 2 == 1)
    # These numbers change only with the rows themselves.
    assert sum(row.is_held_out for row in rows) == 441


@given(st.floats(1e-3, 1e3))
def test_a_corrected_measurement_stays_in_its_half(seconds):
    assert replace(ROW, step_seconds=seconds).is_held_out == ROW.is_held_out


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (2, 2, 2, 1, 4, 2)),
        ({"parallelism": "FULL_SHARD MBS2 GA1"}, (8, 1, 1, 1, 2, 1)),
        ({"parallelism": "fsdp8"}, (8, 1, 1, 1, 2, 1)),
        ({"parallelism": "TP8 PP1 VP3 MBS1 +SP"}, (1, 8, 1, 3, 1, 16)),
        ({"parallelism": "FSDP0 TP1 PP4 CP1 VPn/a EPn/a MBS1"}, (2, 1, 4, 1, 1, 8)),
    ],
)
def test_layouts(changed, expected):
    layout = replace(ROW, **changed).layout()
    names = ("replicas", "tensor", "stages", "rounds", "microbatch", "microbatches")
    assert tuple(getattr(layout, name) for name in names) == expected


@pytest.mark.parametrize(
    "parallelism", ["TP2 DP4 PP2 MBS4", "TP3 MBS1", "TP1 MBS3", "TP1 MBS2 GA2"]
)
def test_numbers_that_do_not_make_the_machine_or_the_batch_are_refused(parallelism):
    with pytest.raises(click.ClickException, match="correct the row"):
        replace(ROW, parallelism=parallelism).layout()


def test_an_unknown_source_is_refused():
    with pytest.raises(click.ClickException, match="give it a family"):
        _ = replace(ROW, source="a blog").family


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "nan", "inf"])
@pytest.mark.parametrize("column", ["step_s", "chips"])
def test_numbers_that_are_none_are_refused(tmp_path, text, column):
    header, first, *_ = ROWS.read_text().splitlines()
    cells = dict(zip(header.split(","), first.split(","), strict=True)) | {column: text}
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n{','.join(cells.values())}\n")
    with pytest.raises(click.ClickException, match=f"line 2: {column} is {text!r}"):
        read_rows(path)


def test_a_file_without_a_column_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("src,model\n")
    with pytest.raises(click.ClickException, match="no column"):
        read_rows(path)


# MPT: the table that the rows are from; Llama 2: 6.74 billion of its paper; GPT-3: 175 billion.
@pytest.mark.parametrize(
    ("model", "length", "expected"),
    [
        ("MPT-125m", 2048, 125_311_488),
        ("MPT-3b", 512, 2_647_905_280),
        ("MPT-7b", 2048, 6_658_859_008),
        ("MPT-30b", 8192, 30_019_254_272),
        ("MPT-70b", 2048, 64_862_437_376),
        ("Llama2-7B", 4096, 6_738_415_616),
        ("Llama3.1-8B", 8192, 8_030_261_248),
        ("Llama3.1-70B", 8192, 70_553_706_496),
        ("Mixtral-8x7B dropped cf1.25", 4096, 46_702_792_704),
    ],
)
def test_parameters_are_those_that_were_published(model, length, expected):
    assert parameter_count(published_decoder(model), length) == expected


def test_gpt3_has_its_175_billion_parameters():
    found = parameter_count(published_decoder("GPT3-175B"), 2048)
    # 12 d^2 L and the table of tokens, biases and norms beside.
    assert found == pytest.approx(12 * 12_288**2 * 96 + 51_200 * 12_288, rel=1e-3)
    assert published_decoder("GPT 175B h12288 L96 a96") == published_decoder("GPT3-175B")


def test_every_group_of_efficiencies_is_one_of_the_rows():
    groups = {group_name(row) for row in read_rows() if why_not(row) is None}
    assert set(read_efficiencies(EFFICIENCIES)) <= groups


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('["A on b"]\nspeed = 1.0\n', "speed; allowed"),
        ('["A on b"]\nproducts = 0.0\n', "products is 0.0"),
        ('["A on b"]\nproducts = "much"\n', "products is 'much'"),
        ('["A on b"]\nhost_seconds = -1.0\n', "host_seconds is -1.0"),
    ],
)
def test_efficiencies_that_are_none_are_refused(tmp_path, text, part):
    path = tmp_path / "efficiencies.toml"
    path.write_text(text)
    with pytest.raises(click.ClickException) as error:
        read_efficiencies(path)
    assert part in str(error.value)
