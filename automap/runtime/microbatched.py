"""Running a step in microbatches on one device, called like the step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from automap.errors import InputError
from automap.jaxpr.microbatch import MicrobatchProgram, separate
from automap.jaxpr.microbatch.loops import run
from automap.step.call import TracedCall
from automap.step.step import StepCall, as_step


class MicrobatchedStep:
    """A step that computes its batch in parts; called like the step. Made by `microbatched`."""

    def __init__(self, entered: StepCall, call: TracedCall, program: MicrobatchProgram) -> None:
        """`program` is the step's that `call` traced, as it was `entered`."""
        self.program = program
        self._entered = entered
        self._call_tree = call.tree
        tree = jax.tree.structure(call.result)

        def microbatched_step(*args: Any, **kwargs: Any) -> Any:
            return jax.tree.unflatten(tree, run(program, jax.tree.leaves((args, kwargs))))

        self._run = jax.jit(
            microbatched_step,
            donate_argnums=tuple(
                i for i, position in enumerate(call.positions) if position in call.donated_positions
            ),
            donate_argnames=tuple(call.donated_names),
            keep_unused=True,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step. Raises `InputError` for arguments of other shapes than it was made for."""
        entered = self._enter(args, kwargs)
        positional, named = jax.tree.unflatten(self._call_tree, entered.leaves)
        return entered.own_result(self._run(*positional, **named))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The `jax.stages.Lowered`; arguments may be `jax.ShapeDtypeStruct`s."""
        entered = self._enter(args, kwargs)
        positional, named = jax.tree.unflatten(self._call_tree, entered.leaves)
        return self._run.lower(*positional, **named)

    def _enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepCall:
        entered = self._entered.step.enter(args, kwargs)
        if entered.signature != self._entered.signature:
            raise InputError(
                "the arguments are of other shapes or types than those the step was put into "
                "microbatches for; call microbatched again for them"
            )
        return entered


def microbatched(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    microbatches: int,
) -> MicrobatchedStep:
    """`step` run on `microbatches` equal parts of its batch, with what it computes on the whole
    batch.

    Args:
        step: a function of trees of arrays, jitted or not; a jitted one keeps its donation.
        args: its arguments, arrays or `jax.ShapeDtypeStruct`s; so are the values of `kwargs`.
        kwargs: its keyword arguments.
        microbatches: at least 2, a divisor of the number of samples.

    Raises:
        InputError: the step cannot be traced, or `microbatches` is not possible.
        NotSeparableError: the step needs all samples at once; names the operation and the line.
    """
    entered = as_step(step).enter(tuple(args), kwargs or {})
    call = entered.traced()
    return MicrobatchedStep(entered, call, separate(call, microbatches))
