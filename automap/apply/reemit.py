"""Re-emitting a step: the same equations again, each under its site's name, or with constraints added.

The step's jaxpr is flattened once into levels (`automap.apply.flatten`), so both uses number the
equations alike, and rewritten without tracing: an equation keeps its primitive, parameters and order, so
the values it computes are the same bits.

    scoped       eqn           ->  eqn in the named scope am<site>~, its own names after it
    constrained  y = op(x)     ->  x' = constrain(x);  y0 = op(x');  y = constrain(y0)

A constraint on an operand holds for that equation only, one on a result or a step input for every use
except as an output of the step that is the input itself.  Equal constraints on one value share one copy.
"""

from collections.abc import Callable, Mapping
import difflib
from functools import cached_property
from typing import Any

import jax
from jax.extend import core
from jax.extend.source_info_util import new_name_stack
from jax.sharding import Mesh, PartitionSpec

from automap.apply.fingerprint import fingerprint
from automap.apply.flatten import Equation, Level, flatten
from automap.apply.pins import Pins, pin_places
from automap.apply.sites import Site, Source, scope_name
from automap.errors import PlanError
from automap.jax_compat import rebuild_jaxpr


class Reemitter:
    """A traced step to be emitted again: `sites` describes its equations, bodies after their owner."""

    def __init__(self, closed_jaxpr: Any) -> None:
        """Flatten the step. `closed_jaxpr` is what `jax.jit(step).trace(...).jaxpr` gives."""
        self._level = flatten(closed_jaxpr)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every equation in program order."""
        return tuple(_describe(self._level))

    @cached_property
    def site_of_path(self) -> dict[str, Site]:
        """`sites` by path."""
        return {site.path: site for site in self.sites}

    def sha256(self) -> str:
        """Fingerprint of the structure, equal in every process that traces the same step."""
        return fingerprint(self._level)

    def scoped(self) -> Callable[..., list[Any]]:
        """The step as a function of its flat inputs, every equation in the named scope of its site."""
        return _as_function(_emit(self._level, pins=None))

    def constrained(
        self, constraints: Mapping[str, PartitionSpec], mesh: Mesh
    ) -> Callable[..., list[Any]]:
        """The step with sharding constraints at `arg<i>`, `<site>:in<j>` and `<site>:out<j>`.

        Raises `PlanError` for a site that the step does not have, and for a spec that does not fit the
        value there or the mesh.
        """
        avals = [var.aval for var in self._level.invars]
        return _as_function(_emit(self._level, pin_places(constraints, mesh, self.site_of_path, avals)))
