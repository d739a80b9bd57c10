"""Steps of no zoo, and what is said of them."""

import inspect

import jax
import pytest

from automap.errors import InputError
from scripts import compare_unseen, measured_steps
from scripts.compare_unseen import Row, report
from scripts.halves import is_held_out
from scripts.unseen_attending import ATTENDING
from scripts.unseen_later import LATER
from scripts.unseen_steps import ADDED, READ, target_name


@pytest.fixture
def no_compiler(monkeypatch):
    """Planning that says what fails, as a machine without a compiler would."""

    def refused(*args, **options):
        raise InputError("no | such\nstep" + "." * 200)

    monkeypatch.setattr(compare_unseen.automap, "plan", refused)


def _row(name, seconds, peak, **fields):
    fields = {"written": "first", "is_judged": True, **fields}
    return Row(
        name=name,
        predicted_seconds=seconds,
        predicted_bytes=peak * 2**20,
        compiled_seconds=1e-3,
        compiled_bytes=10 * 2**20,
        **fields,
    )


EVERY = (*READ, *ADDED, *LATER, *ATTENDING)


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_a_step_can_be_traced(make):
    step, args = make()
    assert jax.eval_shape(step, *args) is not None


def test_no_step_is_there_twice():
    names = [make.__name__ for make in EVERY]
    strangers = [make.__name__ for make in measured_steps.STRANGERS]
    assert len({*names, *strangers}) == len(names) + len(strangers)
    assert all(inspect.getdoc(make) for make in EVERY)


@pytest.mark.parametrize("steps", [ADDED, LATER, ATTENDING], ids=["added last", "later", "latest"])
def test_both_halves_have_steps_that_were_written_after_the_first(steps):
    judged = [is_held_out(target_name(make)) for make in steps]
    assert any(judged) and not all(judged)


def test_errors_are_of_all_of_the_judged_and_of_the_last():
    text = report(
        [
            _row("a", 1.1e-3, 12.0),
            _row("b", 1.2e-3, 10.0, written="added last"),
            _row("c", 0.5e-3, 5.0, is_judged=False),
        ],
        "8xh100",
    )
    assert (
        "- all steps: seconds off by 20.0% in the median and 50% at worst, 1 of 3 within 15 % and "
        "2 within 25 %; peaks off by 20.0% in the median"
    ) in text
    assert "- the half that judges: seconds off by 15.0% in the median" in text
    assert "- the steps that were added last: seconds off by 20.0% in the median" in text
    assert "| c | fitted | 0.500 | 1.000 | 0.50 | 5.0 | 10.0 | 0.50 |" in text
    assert "called fitting but refused: none" in text


def test_what_was_refused_or_not_compiled_is_said():
    refused = Row(
        name="a",
        written="first",
        is_judged=True,
        predicted_seconds=1e-3,
        predicted_bytes=2**20,
        compiled_bytes=4 * 2**20,
        is_refused=True,
        note="does not fit",
    )
    missing = Row(name="b", written="added last", is_judged=False, note="no plan fits")
    text = report([refused, missing], "v5e:2x4")
    assert "- called fitting but refused: a\n- without a comparison: b\n" in text
    assert "| a: does not fit | judged | 1.000 |  |  | 1.0 | 4.0 | 0.25 |" in text
    assert "| b (added last): no plan fits | fitted |  |  |  |  |  |  |" in text
    # Of one step there are bytes, of none seconds: nothing is off by anything.
    assert "in the median" not in text


def test_a_step_that_cannot_be_planned_is_a_row(no_compiler):
    (row,) = compare_unseen.rows(READ[:1], "8xh100")
    assert row.name == READ[0].__name__ and row.predicted_seconds is None
    assert row.note.startswith("no / such step.") and row.note.endswith("...")
    assert len(row.note) < 110
