"""What FlexFlow's figure 7 would be here under other assumptions than the page's own.

Kernels of the page take what their roofline says, and links their catalogued rate. Here

    rows     a matrix product of r rows takes (1 + h / r) times its roofline, so that parts along
             the samples compute longer than parts along features. The paper: in NMT a product takes
             38 % less split over four GPUs along channels than along the samples, that is 256 rows
             and a quarter of the channels for 64 rows and all of them (section 8.2.1), so

                 (1 + h / 256) / (1 + h / 64) = 1 - 0.38   ->   h = 66
    start    each task takes 20 microseconds more, for its start: assumed
    sums     a gradient of n parts is added up on one device and sent back, 2 (n - 1) times its
             bytes over one port, not the ring's 2 (n - 1) / n: assumed, as parameter servers of
             the time did; the paper does not say how it adds up
    links    each link has a quarter of its rate: one NVLink of 20 GB/s between two P100 is a third
             of a port, and the paper's network moves GPUs' data through the hosts' memory: assumed
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
import math
from typing import Literal

from automap.simulate.operators.graph import Operator, OperatorGraph
from hlo_tools.rules import FactorKind
from scripts.flexflow_cases import Case


HALF_ROWS = 66.0
START_SECONDS = 20e-6
LINK_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What is assumed of kernels and sums; nothing at first."""

    half_rows: float = 0.0
    start_seconds: float = 0.0
    adds_on: Literal["a ring", "one device"] = "a ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedOperator(Operator):
    """An operator whose parts take longer than its roofline says."""

    assumption: Assumption

    def part_seconds(self, degrees: tuple[int, ...]) -> float:
        """As of the assumptions."""
        own = {field.name: getattr(self, field.name) for field in fields(Operator)}
        if "dot_general" in self.name:  # convolutions have thousands of rows
            own["compute_seconds"] *= 1.0 + self.assumption.half_rows / self._rows(degrees)
        start_seconds = self.trips * self.assumption.start_seconds
        return Operator(**own).part_seconds(degrees) + start_seconds

    def part_bytes(self, degrees: tuple[int, ...]) -> float:
        """Bytes of one part's result, as often as a ring would have to send them."""
        n_bytes = Operator.part_bytes(self, degrees)
        if self.assumption.adds_on == "a ring":
            return n_bytes
        adding = (f.kind is FactorKind.REDUCTION for f in self.factors)
        return n_bytes * math.prod(d for d, adds in zip(degrees, adding, strict=True) if adds)

    def _rows(self, degrees: tuple[int, ...]) -> float:
        """Rows of a part of the result; the last dimension of a product's result is its columns."""
        sizes = [
            factor.size / degree
            for factor, degree in zip(self.factors, degrees, strict=True)
            if factor.kind is FactorKind.PASSTHROUGH
        ]
        return math.prod(sizes[:-1])


def _assumed(it: Case, assumption: Assumption) -> Case:
    operators = tuple(
        AssumedOperator(
            **{field.name: getattr(o, field.name) for field in fields(Operator)},
            assumption=assumption,
        )
        for o in it.graph.operators
    )
    return replace(it, graph=OperatorGraph(operators, it.graph.edges))


def _slower(it: Case) -> Case:
    rate = it.network.bytes_per_s * LINK_SHARE
    return replace(it, network=replace(it.network, bytes_per_s=rate))


ALL = Assumption(half_rows=HALF_ROWS, start_seconds=START_SECONDS, adds_on="one device")
ASSUMPTIONS: Mapping[str, Callable[[Case], Case]] = {
    "as above": lambda it: it,
    "rows": lambda it: _assumed(it, Assumption(half_rows=HALF_ROWS)),
    "start": lambda it: _assumed(it, Assumption(start_seconds=START_SECONDS)),
    "links": _slower,
    "sums": lambda it: _assumed(it, Assumption(adds_on="one device")),
    "all four": lambda it: _slower(_assumed(it, ALL)),
}
