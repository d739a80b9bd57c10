"""Every lever alone and every two of them on eleven steps, beside the plain step on one device.

    python -m scripts.check_levers --kept rows.jsonl -o docs/reports/levers.md

What the levers do, and which steps these are: `tests/levered_steps.py`. A cell is the largest error
of any array after one, two and three steps, as a fraction of what sums of another order and
roundings may come to; above 1 it is wrong. Rows are kept as they are made.
"""

from pathlib import Path
import re
from typing import Final

import click
import jax

from scripts.tables import keep_row, kept_rows, made_by, markdown, replace_table
from tests.corpus.check import DEVICES
from tests.levered_steps import COMBINATIONS, STEPS, LeveredStep, NoSuchLeverError, compare


COMMAND: Final = "python -m scripts.check_levers"
_SHORT: Final = (
    ("batch normalization", r"mean over the whole batch|puts the samples"),
    ("counts of experts", r"not linear in a sum over the batch"),
    ("no loop", r"no loop that stacks"),
    ("no state", r"no state"),
)


def _row(step: LeveredStep) -> dict[str, str]:
    cells = {"step": step.name}
    for levers in COMBINATIONS:
        name = " + ".join(levers)
        try:
            cells[name] = f"{compare(step, levers).excess:.2f}"
        except NoSuchLeverError as error:
            said = str(error)
            cells[name] = next((short for short, why in _SHORT if re.search(why, said)), said)
    return cells


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(output: Path | None, kept: Path) -> None:
    """Run the steps."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    known = {row["step"]: row for row in kept_rows(kept)}
    for step in STEPS:
        if step.name not in known:
            known[step.name] = _row(step)
            keep_row(kept, known[step.name])
    rows = [list(known[step.name].values()) for step in STEPS]
    cells = [cell for row in rows for cell in row[1:] if cell[0].isdigit()]
    table = markdown(list(known[STEPS[0].name]), rows)
    most = max(map(float, cells))
    table += f"\n{len(cells)} runs, the largest error {most:.2f} of what is allowed.\n"
    if output is None:
        click.echo(table)
        return
    command = f"{COMMAND} --kept rows.jsonl -o {output}"
    machine = f"jax {jax.__version__}, {DEVICES} CPU devices"
    replace_table(output, made_by(command, machine) + table, "numerics")


if __name__ == "__main__":
    main()
