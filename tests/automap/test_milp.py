"""Integer programmes are solved as scipy solves them, and HiGHS says nothing on standard output."""

import ctypes
import os
import threading

import numpy as np
import pytest
import scipy

from automap.milp import milp


# Of the first forty, those in which HiGHS 1.12 prints.
PRINTING = (8, 32, 37)


def _programme(seed: int):
    """A knapsack of several rows of large numbers, as bytes are."""
    rng = np.random.default_rng(seed)
    rows = rng.random((10, 20)) * (rng.random((10, 20)) < 0.4) * 1e12
    constraints = scipy.optimize.LinearConstraint(rows, -np.inf, rows.sum(1) * 0.4)
    return -rng.random(20), {
        "integrality": np.ones(20),
        "bounds": scipy.optimize.Bounds(0, 1),
        "constraints": constraints,
    }


def _solve_some(solve):
    return [solve(cost, **rest).fun for cost, rest in map(_programme, PRINTING)]


def test_the_result_is_scipys():
    assert _solve_some(milp) == _solve_some(scipy.optimize.milp)


def test_nothing_is_printed_where_scipy_prints(capfd):
    _solve_some(milp)
    # As at the end of the process, where C writes what waits for a pipe.
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""
    _solve_some(scipy.optimize.milp)
    ctypes.CDLL(None).fflush(None)
    if "HighsMip" not in capfd.readouterr().out:
        pytest.skip("this version of HiGHS prints nothing")


def test_what_others_write_meanwhile_arrives(capfd, monkeypatch):
    def solve(objective):
        os.write(1, b"HighsMipSolverData::run();\nof another thread\nHighsMipSolverData::x\n")
        return objective

    monkeypatch.setattr(scipy.optimize, "milp", solve)
    assert milp(7) == 7
    os.write(1, b"afterwards\n")
    assert capfd.readouterr().out == "of another thread\nafterwards\n"


def test_an_error_and_a_closed_output_leave_all_as_it_was(capfd):
    with pytest.raises(TypeError):
        milp(0.0, no_such_option=1)
    os.write(1, b"still here\n")
    assert capfd.readouterr().out == "still here\n"
    saved = os.dup(1)
    os.close(1)
    try:
        cost, rest = _programme(0)
        assert milp(cost, **rest).success
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def test_threads_take_turns(capfd):
    threads = [threading.Thread(target=_solve_some, args=(milp,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(1, b"done\n")
    assert capfd.readouterr().out == "done\n"
