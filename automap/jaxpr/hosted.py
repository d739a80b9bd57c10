"""State in the host's memory: where a call's levers keep it, and a step that moves it in and out.

    x  in pinned_host  ->  put(x, Device)  ->  the step's own equations  ->  put(x', Host)

Each leaf x is brought to the device within the program, and its new version x' is taken back, so
that the compiler moves them beside what it computes           -> in: `HostedLeaves.around`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import memory

from automap.step.call import TracedCall


@dataclass(frozen=True)
class HostedLeaves:
    """Numbers of inputs that are in host memory between steps, and of the outputs that are their
    new versions.
    """

    inputs: frozenset[int]
    outputs: frozenset[int]

    @classmethod
    def of(cls, call: TracedCall) -> "HostedLeaves":
        """Those of a call with levers."""
        kept = () if call.levers is None else call.levers.offload
        inputs = frozenset(number for number, path in enumerate(call.paths) if path in kept)
        state = call.state if inputs else {}
        return cls(inputs, frozenset(o for o, number in state.items() if number in inputs))

    def around(self, step: Callable[..., Sequence[Any]]) -> Callable[..., list[Any]]:
        """A step on flat inputs to flat outputs, with these leaves in host memory."""

        def moved(*inputs: Any) -> list[Any]:
            here = [
                jax.device_put(x, memory.Space.Device) if n in self.inputs else x
                for n, x in enumerate(inputs)
            ]
            return [
                jax.device_put(x, memory.Space.Host) if n in self.outputs else x
                for n, x in enumerate(step(*here))
            ]

        return moved if self.inputs else lambda *inputs: list(step(*inputs))
