"""`colocrl-measured`: ColocRL's policy with seconds that are measured on the devices there are.

Costs are in units of the simulated step, R = sqrt(measured seconds * unit), the unit being what is
simulated of a baseline over what is measured of it. Baselines are measured first, so that the
result is never slower than they were; the FINALISTS with the least seconds are measured once more
at the end, as the least of many is chosen for its luck too        -> in: `MeasuredScore.fastest`
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
import json
import math
from pathlib import Path
from typing import Final

import numpy as np

from automap.atomic_file import write_atomically
from automap.deadline import Deadline
from automap.errors import InputError
from automap.placement.baselines import expert, heft, m_sct, memory, single
from automap.placement.colocrl import PAPERS, UPDATES, branch_groups, placement_game
from automap.placement.search import Placed, Search
from automap.placement.training import Run, kept, trained
from automap.search.context import OutOfBudget
from automap.search.progress import ChoiceProgress
from rl.sequences import ReinforceConfig


FINALISTS: Final = 3
# Of the time; the rest is for the finalists.
_LEARNING_SHARE: Final = 0.8


def colocrl_measured(
    search: Search, config: ReinforceConfig = PAPERS, updates: int = UPDATES
) -> Placed:
    """The placement with the least measured seconds of all that a run and the baselines try.

    Raises `InputError` without torch, and where there is nothing to measure on.
    """
    if search.measure is None:
        raise InputError(
            "strategy colocrl-measured runs the step: got a program without one; give "
            "module:function, or strategy colocrl, whose rewards are simulated"
        )
    game = placement_game(search, branch_groups(search.simulator.problem), None)
    until = search.deadline.share(_LEARNING_SHARE)
    score = MeasuredScore(search, search.measure, game.score.group, until)
    run = Run(search, game, score, config, updates, "measured", until)
    score.begin(None if search.folder is None else run.file(search.folder).with_suffix(".json"))
    best, cost = trained(run)
    if math.isfinite(cost):
        # A run that went on knows it also where the file of seconds is gone.
        score.note(search.place(best[game.score.group].tolist()))
    return score.fastest()


@dataclass
class MeasuredScore:
    """Costs of sequences of devices, one for each group, by the seconds that `measure` gives.
    Raises `OutOfBudget` after the deadline.
    """

    search: Search
    measure: Callable[[Placed], float]
    group: np.ndarray
    deadline: Deadline
    seconds: dict[Placed, float] = field(default_factory=dict)
    """Of each placement that was measured."""
    unit: float = 1.0
    """Simulated seconds of a measured second."""
    file: Path | None = None

    def begin(self, file: Path | None) -> None:
        """Read what was measured before, and measure the baselines of whole operators that fit; the
        first gives the unit.
        """
        self.file = file
        if file is not None and file.exists():
            # As of any cache, what cannot be read is made again.
            with suppress(
                ValueError, TypeError, ArithmeticError, RecursionError, InputError, OSError
            ):
                for device, seconds in json.loads(file.read_text()):
                    placed, known = self.search.place(self._checked(device)), float(seconds)
                    if 0.0 < known < math.inf:
                        self.seconds[placed] = known
        placed = [baseline(self.search) for baseline in (single, expert, heft, m_sct, memory)]
        for number, each in enumerate(one for one in placed if one.fits):
            if number == 0:
                self.unit = each.seconds / self._measured(each)
            elif not self.deadline.is_over:
                self._measured(each)

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        """Costs [K] of sequences [K, groups]."""
        return np.array([self._cost(row[self.group].tolist()) for row in sequences])

    def _cost(self, device: list[int]) -> float:
        placed = self.search.place(device)
        if not placed.fits:
            return math.inf
        if self.deadline.is_over and placed not in self.seconds:
            raise OutOfBudget
        return math.sqrt(self._measured(placed) * self.unit)

    def _checked(self, device: object) -> list[int]:
        count, devices = self.search.simulator.problem.n_operators, range(self.search.n_devices)
        if not isinstance(device, list) or len(device) != count or not set(device) <= set(devices):
            raise InputError(f"{self.file}: {device!r:.80} is no placement")
        return device

    def _measured(self, placed: Placed) -> float:
        if placed not in self.seconds:
            self.seconds[placed] = self.measure(placed)
            least, count = min(self.seconds.values()), len(self.seconds)
            self.search.on_progress(ChoiceProgress(f"{count} placements measured", 0, 0, least))
            if self.file is not None:
                rows = [[each.device, seconds] for each, seconds in self.seconds.items()]
                kept(self.file, lambda file: write_atomically(file, json.dumps(rows)))
        return self.seconds[placed]

    def note(self, placed: Placed) -> None:
        """Measure one more, if there is time."""
        if not self.search.deadline.is_over:
            self._measured(placed)

    def fastest(self) -> Placed:
        """That with the least seconds, of the best measured ones when they are measured again."""
        search, known = self.search, self.seconds
        if not known:
            # Nothing fits.
            return min((one(search) for one in (single, memory)), key=lambda p: p.rank)
        finalists = sorted(known, key=lambda placed: known[placed])[:FINALISTS]
        again: dict[Placed, float] = {}
        for placed in finalists:
            if not search.deadline.is_over:
                again[placed] = self.measure(placed)
        # Where time ends among them, what the others took at first stands.
        final = {placed: again.get(placed, known[placed]) for placed in finalists}
        best = min(final, key=lambda placed: final[placed])
        search.notes.append(
            f"measured: {final[best] * 1e3:.3f} ms a step on this machine's devices, the best of "
            f"{len(known)} placements; predicted seconds are simulated"
        )
        return best
