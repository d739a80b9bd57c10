"""The shardings that a step was jitted with: `jax.jit(step, in_shardings=...,
out_shardings=...)`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import NamedSharding

from automap.jax_compat import open_jaxpr
from automap.step.specs import ImposedSpec
from automap.step.user_constraints import UserSharding, imposed_spec, named


@dataclass(frozen=True)
class ImposedEnds:
    """Specs of a jitted step's own `in_shardings` and `out_shardings`, and of pins, by position of
    the leaf.
    """

    inputs: Mapping[int, ImposedSpec] = field(default_factory=dict)
    outputs: Mapping[int, ImposedSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnShardings:
    """Shardings by the position of their leaf, of those that have one."""

    inputs: Mapping[int, NamedSharding]
    outputs: Mapping[int, NamedSharding]

    def ends(self, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> ImposedEnds:
        """The axes that they name, for each dimension of the leaves."""
        return ImposedEnds(_specs(self.inputs, in_avals), _specs(self.outputs, out_avals))

    def named(self, in_paths: Sequence[str], out_paths: Sequence[str]) -> tuple[UserSharding, ...]:
        """All of them, with where they are."""
        return (
            *(UserSharding(f"in_shardings of {in_paths[i]}", s) for i, s in self.inputs.items()),
            *(UserSharding(f"out_shardings of {out_paths[i]}", s) for i, s in self.outputs.items()),
        )


def own_shardings(
    step: Callable[..., Any],
    traced_args: tuple[tuple[Any, ...], Mapping[str, Any]],
    positions: Sequence[int],
    static: Mapping[int | str, Any],
) -> OwnShardings:
    """What a jitted step says; `traced_args` are those at `positions` and by name, `static` the
    others.

    A call of the step, traced, is one equation that has them. Raises `InputError` for shardings
    without names.
    """

    def call(positional: tuple[Any, ...], by_name: Mapping[str, Any]) -> Any:
        at = {**static, **dict(zip(positions, positional, strict=True))}
        # Static arguments go back to their places between the traced ones.
        numbers = sorted(key for key in at if isinstance(key, int))
        given = {key: value for key, value in at.items() if isinstance(key, str)}
        return step(*(at[number] for number in numbers), **given, **by_name)

    # A jitted function is one equation when it is called inside of a trace; what is inlined has
    # none.
    equations = open_jaxpr(jax.make_jaxpr(call)(*traced_args))[0].eqns
    # Shardings that `jax.jit` was not given are there as "unspecified", which `named` leaves out.
    params = equations[0].params if len(equations) == 1 else {}
    ends = [
        {
            number: sharding
            for number, given in enumerate(params.get(option, ()))
            if (sharding := named(given, option)) is not None
        }
        for option in ("in_shardings", "out_shardings")
    ]
    return OwnShardings(*ends)


def _specs(given: Mapping[int, NamedSharding], avals: Sequence[Any]) -> dict[int, ImposedSpec]:
    return {i: imposed_spec(s, len(getattr(avals[i], "shape", ()))) for i, s in given.items()}
