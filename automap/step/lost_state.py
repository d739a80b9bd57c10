"""Whether a step trains something and returns none of it: what it learns would be lost."""

from collections.abc import Iterator
from typing import Any

from automap.jax_compat import open_jaxpr
from automap.step.call import TracedCall


def lost_state(call: TracedCall) -> str | None:
    """A notice for a step that trains, or donates what it is given, and returns no new version of
    anything.
    """
    if call.state:
        return None
    donated = [path for number, path in enumerate(call.paths) if number in call.donated]
    differentiates = any(
        # JAX's mark of a backward pass.
        "transpose(" in str(eqn.source_info.name_stack)
        for eqn in _all_equations(call.jaxpr)
    )
    # Inference returns answers only, and is not warned of.
    if not donated and not differentiates:
        return None
    does = f"donates {donated[0]}" if donated else "differentiates"
    return (
        f"the step {does}, but none of its results replaces an argument: nothing that it trains is "
        "kept; return the new state"
    )


def _all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of the jitted functions that it calls."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        yield eqn
        if "jaxpr" in eqn.params:
            yield from _all_equations(eqn.params["jaxpr"])
