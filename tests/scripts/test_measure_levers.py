"""Plans with levers on one GPU: which are run once for several limits, and what is told of them."""

from dataclasses import asdict
import json
import lzma

from scripts.measure_levers import (
    Case,
    MeasuredPlan,
    _beside_policies,
    _read,
    different_plans,
)
from scripts.measure_steps import Measured


def _case(share, name="with levers", kept=(), predicted=1.0):
    levers = {"remat": list(kept), "recompute_seconds": predicted, "without": {"fits": False}}
    return Case(model="GPT", share=share, name=name, plan={"levers": levers})


def _row(name, seconds, gib, shares=("100%",), model="GPT"):
    measured = Measured(name=name, in_a_row_seconds=seconds, compiled_bytes=gib * 2**30)
    return MeasuredPlan(model=model, name=name, shares=shares, plan={}, measured=measured)


def test_a_plan_of_several_limits_is_run_once_whatever_was_predicted_of_it():
    groups = list(
        different_plans(
            [
                _case("100%"),
                _case("50%", predicted=2.0),
                _case("35%", kept=[1]),
                _case("50%", "full"),
            ]
        )
    )
    assert [[case.share for case in group] for group in groups] == [
        ["100%", "50%"],
        ["35%"],
        ["50%"],
    ]


def test_a_plan_is_held_against_the_fastest_policy_in_no_more_bytes():
    table = _beside_policies(
        [
            _row("with levers", 2.0, 4),
            _row("full", 3.0, 4),
            _row("none", 1.0, 5),
            _row("minimal", 1.0, 1, model="T5"),
            _row("with levers", 9.0, 0, shares=("least",)),
        ]
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert rows[0] == ["GPT", "100%", "4.00", "2000.00", "full", "3000.00", "1.50"]
    assert rows[1] == ["GPT", "least", "0.00", "9000.00", "none", "-", "-"]


def test_kept_rows_are_read_compressed_and_not(tmp_path):
    row = _row("full", 3.0, 4)
    line = json.dumps(asdict(row)) + "\n"
    (tmp_path / "rows.jsonl").write_text(line)
    (tmp_path / "rows.jsonl.xz").write_bytes(lzma.compress(line.encode()))
    assert _read(tmp_path / "rows.jsonl") == _read(tmp_path / "rows.jsonl.xz") == [row]
