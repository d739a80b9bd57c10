"""The table of orders says what was replayed, each in its column."""

from hlo_tools.compiled.replay import ReplayedStep
from scripts.compare_orders import Case, Result, report


def test_a_row_has_both_orders_and_their_ratio():
    def step(seconds):
        return ReplayedStep(seconds=seconds, kernel_seconds=0.0, transfer_seconds=0.0)

    case = Case("models.gpt:gpt_124m", "v5e:2x4", "zero-3", (8,), {"batch": "32"})
    row = report([Result(case, 0.07, step(0.06), step(0.08))]).splitlines()[-1]
    assert row == (
        "| gpt_124m (batch=32) | fitted | v5e:2x4 | zero-3 8 | 70.00 | 80.00 | 60.00 | 0.750 |"
    )
