"""State in the host's memory: where a call's levers keep it, and a step that moves it in and out.

    x  in pinned_host  ->  put(x, Device)  ->  the step's own equations  ->  put(x', Host)

Each leaf x is brought to the device within the program, and its new version x' is taken back: whole
leaves, or part by part in a loop (`automap.jaxpr.in_parts`), where a compiler would have all of
them on the device at once                                      -> in: `HostedLeaves.around`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax import memory
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding

from automap.jax_compat import open_jaxpr, rebuild_jaxpr
from automap.jaxpr.in_parts import Cut, Update, cut_leaf, hosted_updates, run_update
from automap.step.call import TracedCall


HostState = Literal["whole leaves", "in parts"]
"""How state comes in from the host's memory; which is the backend's `host_state`."""


@dataclass(frozen=True)
class HostedLeaves:
    """Numbers of inputs that are in host memory between steps, and of the outputs that are their
    new versions; `state` has the input of each output that is a new version, hosted or not.
    """

    inputs: frozenset[int]
    outputs: frozenset[int]
    state: Mapping[int, int]

    @classmethod
    def of(cls, call: TracedCall) -> "HostedLeaves":
        """Those of a call with levers."""
        kept = () if call.levers is None else call.levers.offload
        inputs = frozenset(number for number, path in enumerate(call.paths) if path in kept)
        state = call.state if inputs else {}
        return cls(inputs, frozenset(o for o, number in state.items() if number in inputs), state)

    def around(
        self,
        step: Callable[..., Sequence[Any]],
        places: Sequence[NamedSharding],
        how: HostState,
    ) -> Callable[..., list[Any]]:
        """A step on flat inputs to flat outputs, with these leaves in host memory; `places` are the
        shardings of all inputs.
        """
        if not self.inputs:
            return lambda *inputs: list(step(*inputs))
        if how == "in parts":
            return lambda *inputs: _InParts(self, step, places, inputs).outputs()
        return lambda *inputs: self._whole(step, inputs)

    def _whole(self, step: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> list[Any]:
        here = [
            jax.device_put(x, memory.Space.Device) if n in self.inputs else x
            for n, x in enumerate(inputs)
        ]
        return [
            jax.device_put(x, memory.Space.Host) if n in self.outputs else x
            for n, x in enumerate(step(*here))
        ]


class _InParts:
    """A call of a step whose hosted leaves come in part by part, those that can; its equations are
    the traced ones but for their updates.
    """

    def __init__(
        self,
        hosted: HostedLeaves,
        step: Callable[..., Sequence[Any]],
        places: Sequence[NamedSharding],
        inputs: Sequence[Any],
    ) -> None:
        self._hosted, self._places, self._inputs = hosted, places, inputs
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in inputs]
        self._closed = jax.make_jaxpr(step)(*shapes)
        self._jaxpr, self._consts = open_jaxpr(self._closed)
        self._number = {var: n for n, var in enumerate(self._jaxpr.invars)}
        self._updates = [
            (update, cut)
            for update in hosted_updates(self._jaxpr, hosted.inputs)
            if (cut := self._cut(update)) is not None
        ]

    def _cut(self, update: Update) -> Cut | None:
        """How the leaves of an update are cut; None if they come in whole."""
        leaves, outvars = self._leaves(update), self._jaxpr.outvars
        places = {self._places[n] for n in leaves}
        results = {o for o, var in enumerate(outvars) if var in update.outputs}
        if len(places) > 1 or not leaves <= {self._hosted.state.get(o) for o in results}:
            return None
        # What the step returns as a leaf and once more would have to be in both memories.
        hosted = {outvars[o] for o in results & self._hosted.outputs}
        if any(outvars[o] in hosted for o in results - self._hosted.outputs):
            return None
        shape = places.pop().shard_shape(update.outputs[0].aval.shape)
        return cut_leaf(shape, max(v.aval.dtype.itemsize for v in update.arrays))

    def _leaves(self, update: Update) -> set[int]:
        return {self._number[v] for v in update.arrays if v in self._number} & self._hosted.inputs

    def outputs(self) -> list[Any]:
        """What the step returns, with hosted outputs in the host's memory."""
        hosted, jaxpr = self._hosted, self._jaxpr
        apart = {n for update, _ in self._updates for n in self._leaves(update)}
        given = [
            jax.device_put(x, memory.Space.Device) if n in hosted.inputs - apart else x
            for n, x in enumerate(self._inputs)
        ]
        values = dict(zip(jaxpr.invars, given, strict=True))
        values |= self._others(values, apart)
        for update, cut in self._updates:
            values |= self._updated(update, cut, values)
        outputs = [v.val if isinstance(v, core.Literal) else values[v] for v in jaxpr.outvars]
        made = {v for update, _ in self._updates for v in update.outputs}
        return [
            jax.device_put(x, memory.Space.Host) if n in hosted.outputs and v not in made else x
            for n, (v, x) in enumerate(zip(jaxpr.outvars, outputs, strict=True))
        ]

    def _others(self, given: Mapping[Any, Any], apart: set[int]) -> dict[Any, Any]:
        """What the updates read and the step returns, of all other equations."""
        jaxpr = self._jaxpr
        own = {id(eqn) for update, _ in self._updates for eqn in update.eqns}
        eqns = [eqn for eqn in jaxpr.eqns if id(eqn) not in own]
        made = {v for eqn in eqns for v in eqn.outvars}
        read = [v for update, _ in self._updates for v in (*update.arrays, *update.scalars)]
        results = [v for v in jaxpr.outvars if not isinstance(v, core.Literal)]
        wanted = list(dict.fromkeys(v for v in (*read, *results) if v in made))
        # Nothing there reads the leaves that come in later.
        invars = [v for n, v in enumerate(jaxpr.invars) if n not in apart]
        rest = rebuild_jaxpr(self._closed, jaxpr.constvars, self._consts, wanted, eqns, invars)
        made_now = jaxpr_as_fun(rest)(*(given[v] for v in invars))
        return dict(zip(wanted, made_now, strict=True))

    def _updated(self, update: Update, cut: Cut, values: Mapping[Any, Any]) -> dict[Any, Any]:
        hosted, outvars = self._hosted, self._jaxpr.outvars
        starts, there = {}, {v for v in update.arrays if self._number.get(v) in hosted.inputs}
        for output, var in enumerate(outvars):
            before = hosted.state.get(output)
            if var in update.outputs and before is not None:
                start = self._jaxpr.invars[before]
                if start in update.arrays and start not in starts.values():
                    starts[var] = start
            if output in hosted.outputs and var in update.outputs:
                there.add(var)
        place = self._places[next(iter(self._leaves(update)))]
        results = run_update(update, values, starts, there, place, cut)
        return dict(zip(update.outputs, results, strict=True))
