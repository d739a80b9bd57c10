"""What FlexFlow's figure 7 would be here under other assumptions than the page's own.

Kernels of the page take what their roofline says, and links their catalogued rate. Here

    rows     a matrix product of r rows takes (1 + h / r) times its roofline, so that parts along
             the samples compute longer than parts along features. The paper: in NMT a product takes
             38 % less split over four GPUs along channels than along the samples, that is 256 rows
             and a quarter of the channels for 64 rows and all of them (section 8.2.1), so

                 (1 + h / 256) / (1 + h / 64) = 1 - 0.38   ->   h = 66
    start    each task takes 20 microseconds more, for its start: assumed
    links    each link has a quarter of its rate: one NVLink of 20 GB/s between two P100 is a third
             of a port, and the paper's network moves GPUs' data through the hosts' memory: assumed
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
import math

from automap.simulate.operators.graph import Operator, OperatorGraph
from hlo_tools.rules import FactorKind
from scripts.flexflow_cases import Case


HALF_ROWS = 66.0
START_SECONDS = 20e-6
LINK_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedOperator(Operator):
    """An operator whose parts take longer than its roofline says."""

    half_rows: float
    start_seconds: float

    def part_seconds(self, degrees: tuple[int, ...]) -> float:
        """As of the assumptions."""
        own = {field.name: getattr(self, field.name) for field in fields(Operator)}
        if "dot_general" in self.name:  # convolutions have thousands of rows
            own["compute_seconds"] *= 1.0 + self.half_rows / self._rows(degrees)
        return Operator(**own).part_seconds(degrees) + self.trips * self.start_seconds

    def _rows(self, degrees: tuple[int, ...]) -> float:
        """Rows of a part of the result; the last dimension of a product's result is its columns."""
        sizes = [
            factor.size / degree
            for factor, degree in zip(self.factors, degrees, strict=True)
            if factor.kind is FactorKind.PASSTHROUGH
        ]
        return math.prod(sizes[:-1])


def _assumed(it: Case, half_rows: float, start_seconds: float) -> Case:
    operators = tuple(
        AssumedOperator(
            **{field.name: getattr(o, field.name) for field in fields(Operator)},
            half_rows=half_rows,
            start_seconds=start_seconds,
        )
        for o in it.graph.operators
    )
    return replace(it, graph=OperatorGraph(operators, it.graph.edges))


def _slower(it: Case) -> Case:
    rate = it.network.bytes_per_s * LINK_SHARE
    return replace(it, network=replace(it.network, bytes_per_s=rate))


ASSUMPTIONS: Mapping[str, Callable[[Case], Case]] = {
    "as above": lambda it: it,
    "rows": lambda it: _assumed(it, HALF_ROWS, 0.0),
    "start": lambda it: _assumed(it, 0.0, START_SECONDS),
    "links": _slower,
    "all three": lambda it: _slower(_assumed(it, HALF_ROWS, START_SECONDS)),
}
