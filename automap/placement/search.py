"""What every strategy that places operators works with, and what it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from automap.deadline import Deadline
from automap.numba_jit import Array
from automap.placement.prices import price
from automap.placement.simulation import Simulator
from automap.search.progress import ChoiceProgress


@dataclass(frozen=True)
class Placed:
    """A placement: the device of each operator, or another choice of the machine's, its seconds,
    and whether it fits; `gap` is the fraction above a proven bound, None without one.
    """

    device: tuple[int, ...]
    seconds: float
    overflow: float
    gap: float | None = None

    @property
    def fits(self) -> bool:
        """Whether all devices hold it."""
        return self.overflow == 0.0

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: what fits first, then what is fastest."""
        return self.overflow, self.seconds


class Moves(NamedTuple):
    """What a search may change: the layer of each operator, `layers` [operators]; the choices that
    each has, `able` [operators, choices], as a list option[first[o] : first[o + 1]].
    """

    layers: Array
    able: Array
    first: Array
    option: Array


@dataclass
class Search:
    """What a strategy works with: a simulator, a seed, an end; `priced` counts the work.

    `on_progress` hears how far it is. What is learnt is kept in `folder`, and a run that is there
    goes on; None keeps nothing. `measure` gives the seconds of a step on devices that are there;
    None without them. `notes` is what the strategy has to say of its result.
    """

    simulator: Simulator
    seed: int = 0
    deadline: Deadline = field(default_factory=Deadline.never)
    priced: int = 0
    on_progress: Callable[[ChoiceProgress], None] = lambda progress: None
    folder: Path | None = None
    measure: Callable[[Placed], float] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def n_devices(self) -> int:
        """Devices of the machine."""
        return len(self.simulator.machine.kind)

    def place(self, device: Sequence[int]) -> Placed:
        """Price one placement."""
        self.priced += 1
        seconds, overflow = price(
            self.simulator.step, self.simulator.machine, np.array(device, np.int64)
        )
        return Placed(tuple(map(int, device)), float(seconds), float(overflow))

    @cached_property
    def layers(self) -> np.ndarray:
        """The layer of each operator: those that are called after one parameter, [operators]."""
        first: dict[str, int] = {}
        names = self.simulator.problem.operators.names
        return np.array([first.setdefault(n.partition(" #")[0], len(first)) for n in names])

    @cached_property
    def moves(self) -> Moves:
        """What may be changed."""
        able = self.simulator.able
        first = np.cumsum([0, *able.sum(axis=1)]).astype(np.int64)
        return Moves(self.layers, able, first, np.nonzero(able)[1])


Strategy = Callable[[Search], Placed]
