"""What is computed again of a block: the equations that make a value, behind what is kept.

Of each block (`automap.jaxpr.blocks`) some variables are kept. A variable d that is not is made
again by the equations that lead to it from what is kept, what the block is given, and what the
forward pass has stored in any case                                        -> in: `Again.needed`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jax.extend import core
from jax.extend.source_info_util import new_name_stack

from automap.jaxpr.blocks import Block, variables


COMPUTED_AGAIN: Final = "rematted_computation"
"""In the names of what is computed again; JAX names so what `jax.checkpoint` does."""

_BACKWARD: Final = "transpose(jvp(checkpoint))"


HostStacks = Literal["any order", "one order"]
"""Whether a compiler is told the order of dimensions of what a loop keeps in the host's memory;
which is the backend's `host_stacks`.
"""


@dataclass(frozen=True)
class Choice:
    """A block, and the variables that it makes and keeps; `hosted` are those of them that wait in
    the host's memory, in `host_stacks`.
    """

    block: Block
    kept: frozenset[Any]
    hosted: frozenset[Any] = frozenset()
    host_stacks: HostStacks = "any order"

    def is_dropped(self, var: Any) -> bool:
        """Whether a variable is computed again where a backward pass reads it."""
        block = self.block
        return var in block.number and var not in self.kept and var not in block.stored


@dataclass(slots=True)
class Again:
    """A block's equations emitted again, each at most once.

    `now` has what stands for a variable of the block, or for one that it reads, so far.
    """

    choice: Choice
    now: dict[Any, Any] = field(default_factory=dict)

    def needed(self, var: Any) -> tuple[list[int], list[Any]]:
        """Equations of the block that make a dropped variable, in order, and what they read from
        outside.
        """
        block = self.choice.block
        needed, outside, todo = set[int](), dict[Any, None](), [var]
        while todo:
            latest = todo.pop()
            if latest in self.now:
                continue
            if not self.choice.is_dropped(latest):
                outside[latest] = None
                continue
            number = block.number[latest][0]
            if number not in needed:
                needed.add(number)
                todo += variables(block.equations[number].eqn.invars)
        return sorted(needed), list(outside)

    def emit(self, numbers: Sequence[int]) -> Iterator[Any]:
        """Those equations again, with variables of their own."""
        for number in numbers:
            eqn = self.choice.block.equations[number].eqn
            made = [v if isinstance(v, core.DropVar) else core.Var(v.aval) for v in eqn.outvars]
            names = new_name_stack(_BACKWARD) + new_name_stack(COMPUTED_AGAIN)
            info = eqn.source_info
            yield eqn.replace(
                invars=[a if isinstance(a, core.Literal) else self.now[a] for a in eqn.invars],
                outvars=made,
                source_info=info.replace(name_stack=names + info.name_stack),
            )
            # What is kept, or was computed again before, stays what it is.
            for old, new in zip(eqn.outvars, made, strict=True):
                if not isinstance(old, core.DropVar):
                    self.now.setdefault(old, new)


def is_var(atom: Any) -> bool:
    """Whether an atom is a variable."""
    return not isinstance(atom, core.Literal)
