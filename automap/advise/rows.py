"""What `automap advise` answers: a row for each machine and batch, and the best of them.

money for a million  money an hour * step seconds / 3600 / units of a step * 1e6, the units
                     being tokens, or samples where there are none       -> in: `AdviceRow`
the front            rows that fit such that no other does as much in a second for as little, of
                     money an hour, or of devices where prices are not given
                                                                         -> in: `pareto_front`
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
import math
from typing import Literal

from automap.advise.request import Machine, Prices, Wanted
from automap.plan.checks import check_numbers


How = Literal["search", "presets", "bound"]
"""How a row was found: a search, the presets alone, or a bound on memory that no plan is below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """The best plan found for one batch on one machine; numbers of a plan are 0 where none was
    priced.

    - `how`: how it was found; presets alone where a search could not have changed an answer, or
      where time was up (`Advice.notes`).
    - `plan`, `mesh`: the preset or strategy, and the axes with their sizes.
    - `fits`, `peak_bytes`, `memory_bytes`: of one device.
    - `mfu`, `samples_per_second`, `tokens_per_second`: as in plans (`automap.plan.rates`).
    - `price_per_hour`, `price_per_million`: money; null without a price of the machine.
    """

    machine: str
    kind: str
    devices: int
    batch: int
    how: How
    plan: str
    mesh: tuple[tuple[str, int], ...]
    fits: bool
    step_seconds: float
    peak_bytes: int
    memory_bytes: int
    mfu: float
    samples_per_second: float
    tokens_per_second: float
    price_per_hour: float | None = None
    price_per_million: float | None = None

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)

    @property
    def rate(self) -> float:
        """Tokens a second, or samples where the step has no tokens."""
        return self.tokens_per_second or self.samples_per_second

    @property
    def cost(self) -> float:
        """Money an hour, or devices where no price is known."""
        return self.devices if self.price_per_hour is None else self.price_per_hour

    def can_be_on(self, machine: Machine) -> bool:
        """Whether a row that was kept can be one of a machine: of its devices and their memory."""
        topology = machine.topology
        own = (topology.device_count, topology.device.memory_bytes)
        devices = math.prod(size for _, size in self.mesh) if self.mesh else self.devices
        return (
            self.machine == machine.name
            and devices == self.devices
            and (self.devices, self.memory_bytes) == own
            and (not self.fits or (bool(self.mesh) and self.peak_bytes <= self.memory_bytes))
        )

    def priced(self, machine: Machine, prices: Prices | None) -> "AdviceRow":
        """The row with its money."""
        per_hour = None if prices is None else prices.per_hour(machine)
        if per_hour is None or not self.rate:
            return replace(self, price_per_hour=per_hour, price_per_million=None)
        per_million = per_hour / 3600.0 / self.rate * 1e6
        return replace(self, price_per_hour=per_hour, price_per_million=per_million)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All rows, the fewest devices first, and what they answer; null where nothing does.

    - `unit`: what `rate` counts, tokens or samples.
    - `currency`: of the prices; "" without prices.
    - `wanted`: the rates that were asked for.
    - `smallest`: of the machines on which a batch fits, one of the fewest devices.
    - `cheapest`: of the rows that reach the wanted rate, the one of least cost.
    - `front`: the rows of which no other is both as fast and as cheap, the cheapest first.
    - `notes`: what was left out, and why.
    """

    target: str
    unit: Literal["tokens", "samples"]
    currency: str
    wanted: Wanted
    rows: tuple[AdviceRow, ...]
    smallest: AdviceRow | None
    cheapest: AdviceRow | None
    front: tuple[AdviceRow, ...]
    notes: tuple[str, ...]

    @property
    def best_per_machine(self) -> tuple[AdviceRow, ...]:
        """Of each machine on which some batch fits, the row that does most in a second."""
        best: dict[str, AdviceRow] = {}
        for row in self.rows:
            if row.fits and (row.machine not in best or row.rate > best[row.machine].rate):
                best[row.machine] = row
        return tuple(best.values())


def pareto_front(rows: Iterable[AdviceRow]) -> tuple[AdviceRow, ...]:
    """Rows that fit of which no other is both as fast and as cheap, the cheapest first.

    Where some have prices, those without have no place among them.
    """
    fitting = [row for row in rows if row.fits]
    if any(row.price_per_hour is not None for row in fitting):
        fitting = [row for row in fitting if row.price_per_hour is not None]
    front: list[AdviceRow] = []
    # From the cheapest on, and of equals from the fastest: each has to be faster than all before.
    for row in sorted(fitting, key=lambda row: (row.cost, -row.rate)):
        if not front or row.rate > front[-1].rate:
            front.append(row)
    return tuple(front)


def make_advice(
    target: str,
    rows: Sequence[AdviceRow],
    wanted: Wanted,
    currency: str,
    notes: Sequence[str],
) -> Advice:
    """The answers that rows give."""
    fitting = [row for row in rows if row.fits]
    enough = [
        row
        for row in fitting
        if row.tokens_per_second >= wanted.tokens_per_second
        and row.samples_per_second >= wanted.samples_per_second
    ]
    # With prices, a machine without one is no answer to what is cheapest.
    has_prices = any(row.price_per_hour is not None for row in enough)
    known = [row for row in enough if row.price_per_hour is not None or not has_prices]
    cheapest = min(known, key=lambda row: (row.cost, -row.rate), default=None)
    return Advice(
        target=target,
        unit="tokens" if any(row.tokens_per_second for row in rows) else "samples",
        currency=currency,
        wanted=wanted,
        rows=tuple(rows),
        smallest=min(fitting, key=lambda row: (row.devices, row.cost, -row.rate), default=None),
        cheapest=cheapest if wanted.is_given else None,
        front=pareto_front(rows),
        notes=tuple(notes),
    )
