"""In what a call differs from those that plans were made for, in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from automap.plan.record import PlanRecord
from automap.step.call import TracedCall


_SHOWN: Final = 3


def difference(plans: Sequence[PlanRecord], call: TracedCall) -> str:
    """How a call differs from the plan that it differs least from, the latest of several; `plans`
    are latest first.
    """
    found = min((list(_differences(plan, call)) for plan in plans), key=len)
    if not found:
        return (
            "it computes something else with the same arrays: a static argument, or what it closes "
            "over, differs"
        )
    rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{rest}"


def _differences(plan: PlanRecord, call: TracedCall) -> Iterator[str]:
    planned = {leaf.path: _text(leaf.dtype, leaf.shape) for leaf in plan.inputs}
    avals = zip(call.paths, call.jaxpr.in_avals, strict=True)
    given = {path: _text(aval.dtype, aval.shape) for path, aval in avals}
    for path, array in given.items():
        if path not in planned:
            yield f"{path} is new"
        elif planned[path] != array:
            yield f"{path} is {array}, planned was {planned[path]}"
    yield from (f"{path} is missing" for path in planned if path not in given)


def _text(dtype: object, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
