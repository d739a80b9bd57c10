"""Rows of `automap advise`: each is the plan that the planner finds there, what is skipped changes
no answer, and what was found is there again.
"""

from dataclasses import replace
from functools import cache
import json

from click.testing import CliRunner
import jax
import jax.numpy as jnp
import pytest

import automap
from automap.advise import search
from automap.advise.request import Prices, Wanted, read_machines
from automap.advise.rows import AdviceRow, pareto_front
from automap.advise.search import AdviceRequest, find_advice
from automap.cli import main
from automap.config import Options
from automap.errors import InputError
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.step.user_mesh import UserMesh
from automap.topology import get_topology


WIDTH = 4096
MACHINES = ("1xh100", "8xh100", "8xa100", "v5e:2x4")


def make(batch=1024):
    """A step of two products, and its arguments."""

    def step(w, tokens, x):
        def loss(w):
            return jnp.mean((jnp.tanh(x @ w) @ w.T) ** 2) + jnp.mean(w[tokens[:, 0]])

        return w - jax.grad(loss)(w)

    shapes = (((WIDTH, WIDTH), "float32"), ((batch, 1), "int32"), ((batch, WIDTH), "float32"))
    return step, tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes)


@cache
def program(batch, platform):
    return trace_step(*make(batch), platform=platform)


def request(**changes):
    base = AdviceRequest(
        target="make",
        machines=read_machines(MACHINES, ""),
        batches=(1024, 8192),
        wanted=Wanted(),
        prices=None,
        strategy="greedy",
        budget_seconds=60.0,
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def advice():
    return find_advice(request(), program)


def test_searched_rows_are_what_the_planner_finds(advice):
    searched = [row for row in advice.rows if row.how == "search"]
    assert searched
    for row in searched[:3]:
        topology = get_topology(row.machine)
        options = Options(strategy="greedy")
        best = find(program(row.batch, topology.platform), topology, options).best
        assert row.step_seconds == best.estimate.step_seconds
        assert row.peak_bytes == round(best.estimate.peak_bytes)
        assert row.samples_per_second == pytest.approx(row.batch / row.step_seconds)


def test_every_machine_and_batch_has_a_row(advice):
    assert {(row.machine, row.batch) for row in advice.rows} == {
        (machine, batch) for machine in MACHINES for batch in request().batches
    }


def test_what_was_not_searched_changes_no_answer(advice, monkeypatch):
    # With a bound that is never reached all rows are searched.
    monkeypatch.setattr(search._Cells, "most_rate", lambda cells, batch, machine: float("inf"))
    everything = find_advice(request(), program)
    assert all(row.how == "search" for row in everything.rows)
    assert any(row.how == "presets" for row in advice.rows)
    assert [(r.machine, r.batch) for r in advice.front] == [
        (r.machine, r.batch) for r in everything.front
    ]
    assert advice.smallest.machine == everything.smallest.machine


def test_the_front_is_what_nothing_is_better_than(advice):
    def is_beaten(row):
        return any(
            other.cost <= row.cost
            and other.rate >= row.rate
            and (other.cost, other.rate) != (row.cost, row.rate)
            for other in advice.rows
            if other.fits
        )

    assert set(advice.front) == {row for row in advice.rows if row.fits and not is_beaten(row)}


def test_money_is_price_times_devices_over_rate():
    prices = Prices("EUR", {"h100": 3.0, "a100": 1.0})
    wanted = Wanted(samples_per_second=1.0)
    advice = find_advice(request(prices=prices, wanted=wanted), program)
    row = next(row for row in advice.rows if row.machine == "8xh100")
    assert row.price_per_hour == 24.0
    assert row.price_per_million == pytest.approx(24.0 / 3600 / row.samples_per_second * 1e6)
    # TPUs have no price here, and no place among what is cheap.
    assert all(row.price_per_hour is not None for row in advice.front)
    cheap = [r for r in advice.rows if r.fits and r.price_per_hour is not None]
    assert advice.cheapest.price_per_hour == min(r.price_per_hour for r in cheap)


def test_a_rate_that_none_reaches_has_no_answer():
    advice = find_advice(request(wanted=Wanted(samples_per_second=1e15)), program)
    assert advice.cheapest is None


def test_state_that_is_too_large_is_not_priced():
    machines = read_machines(("1xh100", "8xh100"), "")
    small = replace(machines[0].topology.device, memory_bytes=WIDTH * WIDTH)
    tight = replace(machines[0], topology=replace(machines[0].topology, device=small))
    (row,) = find_advice(request(machines=(tight,), batches=(1024,)), program).rows
    assert (row.how, row.fits, row.step_seconds) == ("bound", False, 0.0)
    assert row.peak_bytes == WIDTH * WIDTH * 4


def test_rows_are_there_again(tmp_path, monkeypatch):
    asked = request(machines=read_machines(("8xh100",), ""), cache_folder=tmp_path)
    first = find_advice(asked, program)
    monkeypatch.setattr(search, "price_presets", None)
    assert find_advice(asked, program) == first
    # Another strategy is another question.
    with pytest.raises(TypeError):
        find_advice(replace(asked, strategy="beam"), program)


def test_a_broken_row_is_found_anew(tmp_path):
    asked = request(machines=read_machines(("8xh100",), ""), batches=(1024,), cache_folder=tmp_path)
    first = find_advice(asked, program)
    (file,) = tmp_path.iterdir()
    file.write_text('{"a": [1]}')
    assert find_advice(asked, program) == first


@pytest.mark.parametrize(
    "change",
    [
        {"mesh": [["all", 16]]},
        {"mesh": [["all", 16]], "devices": 16},
        {"mesh": []},
        {"machine": "16xh100"},
        {"memory_bytes": 1 << 50, "peak_bytes": 1 << 49},
        {"peak_bytes": 1 << 49},
    ],
)
def test_a_kept_row_that_is_none_of_the_machine_is_found_anew(change, tmp_path):
    asked = request(machines=read_machines(("8xh100",), ""), batches=(1024,), cache_folder=tmp_path)
    first = find_advice(asked, program)
    (file,) = tmp_path.iterdir()
    kept = {key: {**row, **change} for key, row in json.loads(file.read_text()).items()}
    file.write_text(json.dumps(kept))
    assert find_advice(asked, program) == first


def test_rows_of_another_mesh_in_the_code_are_found_anew(tmp_path, monkeypatch):
    asked = request(machines=read_machines(("8xh100",), ""), batches=(1024,), cache_folder=tmp_path)

    def on_mesh(names):
        def own(batch, platform):
            mesh = UserMesh(names, None, (), "")
            return replace(program(batch, platform), mesh=mesh)

        return own

    first = find_advice(asked, on_mesh(("x", "y")))
    monkeypatch.setattr(search, "price_presets", None)
    assert find_advice(asked, on_mesh(("x", "y"))) == first
    with pytest.raises(TypeError):
        find_advice(asked, on_mesh(("rows", "columns")))


def test_what_time_does_not_allow_is_said():
    advice = find_advice(request(budget_seconds=1e-6), program)
    assert len(advice.rows) == 0
    assert "cells were not looked at" in advice.notes[0]


ROW = AdviceRow(
    machine="m",
    kind="k",
    devices=1,
    batch=1,
    how="search",
    plan="",
    mesh=(),
    fits=True,
    step_seconds=1.0,
    peak_bytes=1,
    memory_bytes=1,
    mfu=0.5,
    samples_per_second=1.0,
    tokens_per_second=0.0,
)


def test_what_does_not_fit_is_on_no_front():
    assert pareto_front([replace(ROW, fits=False), replace(ROW, devices=2)]) == (
        replace(ROW, devices=2),
    )


def test_the_function_gives_what_the_search_does(advice, tmp_path):
    made = automap.advise(make, batch="1024,8192", topology=("8xh100",))
    rows = {(row.machine, row.batch): row for row in advice.rows}
    assert len(made.rows) == 2
    # A machine alone may be searched where beside others it was not.
    for row in made.rows:
        assert row.step_seconds <= rows[row.machine, row.batch].step_seconds * (1 + 1e-9)
    made.save(tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())["rows"]
    with pytest.raises(InputError, match="ends in .json"):
        made.save(tmp_path / "rows.txt")


def test_a_picture_has_the_machines(advice, tmp_path):
    pytest.importorskip("matplotlib")
    from automap.advise.picture import save_advice

    save_advice(advice, tmp_path / "front.svg")
    text = (tmp_path / "front.svg").read_text()
    assert text.startswith("<?xml")


def test_the_command_prints_answers(tmp_path):
    words = ["models.mlp:mlp_tiny", "--topology", "2xh100"]
    options = ["--batch", "64,128", "--cache-dir", str(tmp_path)]
    run = CliRunner().invoke(main, ["advise", *words, *options])
    assert run.exit_code == 0, run.output
    assert "smallest machine that fits: " in run.stdout
    assert "* no other row is faster on as few or fewer devices" in run.stdout
    again = CliRunner().invoke(main, ["advise", *words, *options, "--json"])
    assert {row["batch"] for row in json.loads(again.stdout)["rows"]} == {64, 128}


def test_prices_of_none_of_the_machines_are_said_to_be_so(tmp_path):
    path = tmp_path / "prices.toml"
    words = ["advise", "models.mlp:mlp_tiny", "--topology", "2xh100", "--price", str(path)]
    said = {}
    for device in ("a100", "h100"):
        path.write_text(f"[per_device_hour]\n{device} = 2.0\n")
        said[device] = CliRunner().invoke(main, [*words, "--batch", "64", "--no-cache"]).stdout
    assert "the file of prices has none of these machines, only a100: answers are" in said["a100"]
    assert "no other row is faster on as few or fewer devices" in said["a100"]
    assert "the file of prices" not in said["h100"]
    assert "no other row is as fast and as cheap" in said["h100"]


def test_machines_that_time_did_not_allow_are_not_said_to_be_too_small(tmp_path):
    words = ["advise", "models.mlp:mlp_tiny", "--topology", "2xh100", "--budget", "1e-6"]
    run = CliRunner().invoke(main, [*words, "--batch", "64", "--cache-dir", str(tmp_path)])
    assert run.exit_code == 1
    assert "the time was up before the first of 1 machine was looked at" in run.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "8", "--batch-arg", "size"], "say with --batch-arg which parameter"),
        (["-o", "rows.txt"], "ends in .json"),
        (["--fit", "gpu<=4"], "--fit: got"),
        (["--budget", "nan"], "budget nan: must be a positive number of seconds"),
    ],
)
def test_bad_options_are_usage_errors(options, message, tmp_path):
    words = ["advise", "models.mlp:mlp_tiny", "--topology", "8xh100", *options]
    run = CliRunner().invoke(main, [*words, "--cache-dir", str(tmp_path)])
    assert run.exit_code == 2
    assert message in run.output
