"""The corpus' own check tells a wrong step from one that rounds otherwise; it needs none of its
libraries.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.verify.numerics import tolerance
from scripts.corpus import Row, cells, kept, report
from tests.corpus.check import DEVICES, Reference
from tests.corpus.entries import ENTRIES
from tests.corpus.entry import Call
from tests.corpus.trajectory import run, run_with_noise


ROUNDING = 2.0**-24


def _call(scale=1.0, shift=0, order=slice(None)):
    """Gradient descent on least squares; the other arguments make it wrong, or sum in another
    order.
    """
    x = jax.random.normal(jax.random.key(0), (64, 8))

    @jax.jit
    def step(w, x, y):
        x, y = x[order], y[order]
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * scale * grad, loss, jnp.argmax(w) + shift

    return Call(step, (jnp.arange(8.0), x, x.sum(1)), {})


def _reference():
    noisy = tuple(run_with_noise(_call(), (0,), ROUNDING, seed) for seed in range(2))
    return Reference(run(_call().step, _call(), (0,)), noisy, tolerance(np.float32, DEVICES))


def _excess(call):
    return _reference().compare(run(call.step, call, (0,))).excess


def test_the_same_step_agrees_and_so_does_one_that_sums_backwards():
    assert _excess(_call()) == 0
    assert 0 < _excess(_call(order=slice(None, None, -1))) < 1


@pytest.mark.parametrize("wrong", [{"scale": 1.01}, {"shift": 1}, {"order": slice(1, None)}])
def test_a_wrong_step_is_told(wrong):
    assert _excess(_call(**wrong)) > 1


def test_an_array_too_few_is_told():
    call = _call()
    found = _reference().compare(run(lambda *args: call.step(*args)[:2], call, (0,)))
    assert found.excess == math.inf
    assert "one side only" in found.where


def test_the_state_is_carried_and_what_changes_in_place_is_seen():
    state = {"count": np.zeros(3)}

    def step(state):
        state["count"] += 1

    made = run(step, Call(step, (state,), {}), ())
    assert [made[f"step {n} argument [0]['count']"].value[0] for n in (1, 2, 3)] == [1, 2, 3]
    call = _call()
    losses = [a.value for path, a in run(call.step, call, (0,)).items() if path.endswith(" [1]")]
    assert losses[0] > losses[1] > losses[2]


def test_a_page_keeps_the_rows_that_are_not_made_anew(tmp_path):
    first, second = (Row(entry) for entry in ENTRIES[:2])
    first.cells["random"], second.failures = "0.5", ["random: [0]['w'] | differs".replace("|", "/")]
    rows = [cells(first), cells(second)]
    page = tmp_path / "page.md"
    page.write_text(
        report(rows, "a command", dict.fromkeys({entry.library for entry in ENTRIES}, "1.0"))
    )
    assert kept(page) == {row[0]: row for row in rows}
    assert f"2 of the {len(ENTRIES)} steps" in page.read_text()
    assert "; 1 are planned" in page.read_text()
