"""One call of a step: which of its arguments are traced, and what tracing gave.

    leaves    arrays of a call in flattened argument order: positional arguments first, keyword
              arguments by name after them, static ones left out           -> in: `TracedCall.leaves`
    paths     `jax.tree_util.keystr` of each leaf, counted over all positional arguments, so that
              a static one before it does not move it; a keyword argument starts with its name

A step that `jax.jit` has wrapped keeps its own options; any other is jitted here with those given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.tree_util import DictKey, SequenceKey, keystr, tree_flatten_with_path

from automap.apply.user_constraints import UserSharding, imposed_spec, named
from automap.errors import InputError
from automap.jax_compat import open_jaxpr, static_positions
from automap.space.imposed import ImposedEnds


@dataclass(frozen=True)
class TracedCall:
    """A step traced with the arguments of one call.

    `positions` and `names` are the positional and keyword arguments that are traced; `args` are
    those arguments, `(tuple, dict)`, and `static` the others by position or name. `result` is the
    step's result as a tree of shapes. `in_shardings` and `out_shardings` are those the step was jitted with, per leaf.
    """

    jaxpr: Any
    positions: tuple[int, ...]
    names: tuple[str, ...]
    args: tuple[tuple[Any, ...], dict[str, Any]]
    static: Mapping[int | str, Any]
    donated_positions: frozenset[int]
    donated_names: frozenset[str]
    result: Any
    in_shardings: tuple[NamedSharding | None, ...]
    out_shardings: tuple[NamedSharding | None, ...]

    def traced_part(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a like call without its static ones."""
        return tuple(args[i] for i in self.positions), {n: kwargs[n] for n in self.names}

    def serves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the trace is also that of another call: equal trees, types and static values."""
        static = _rest(args, kwargs, self.positions, self.names)
        n_args = len(self.positions) + sum(isinstance(key, int) for key in self.static)
        if len(args) != n_args or not set(self.names) <= set(kwargs) or static != self.static:
            return False
        leaves, tree = jax.tree.flatten(self.traced_part(args, kwargs))
        return tree == self._tree and all(map(_is_like, leaves, self.jaxpr.in_avals))

    @cached_property
    def _tree(self) -> Any:
        return jax.tree.structure(self.args)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Path of every leaf."""
        found, _ = tree_flatten_with_path(self.args)
        return tuple(keystr(self._from_root(path)) for path, _ in found)

    def _from_root(self, path: tuple[Any, ...]) -> tuple[Any, ...]:
        if isinstance(path[1], DictKey) and path[0] == SequenceKey(1):
            return path[1:]
        return (SequenceKey(self.positions[path[1].idx]), *path[2:])

    @cached_property
    def donated(self) -> frozenset[int]:
        """Numbers of the leaves that the step donates."""
        positional, named = self.args
        groups = [
            (argument, position in self.donated_positions)
            for argument, position in zip(positional, self.positions, strict=True)
        ]
        groups += [(named[name], name in self.donated_names) for name in sorted(named)]
        flags = [flag for argument, flag in groups for _ in jax.tree.leaves(argument)]
        return frozenset(i for i, flag in enumerate(flags) if flag)

    @property
    def ends(self) -> ImposedEnds:
        """The axes that the step's own shardings name, by leaf."""
        avals = (self.jaxpr.in_avals, self.jaxpr.out_avals)
        found = [
            {
                i: imposed_spec(sharding, len(getattr(aval, "shape", ())))
                for i, (sharding, aval) in enumerate(zip(given, of, strict=True))
                if sharding is not None
            }
            for given, of in zip((self.in_shardings, self.out_shardings), avals)
        ]
        return ImposedEnds(*found)

    @property
    def user_shardings(self) -> tuple[UserSharding, ...]:
        """The step's own shardings with where they are."""
        sides = (
            ("in_shardings", self.paths, self.in_shardings),
            ("out_shardings", self.result_paths, self.out_shardings),
        )
        return tuple(
            UserSharding(f"{option} of {path}", sharding)
            for option, paths, shardings in sides
            for path, sharding in zip(paths, shardings, strict=True)
            if sharding is not None
        )

    @cached_property
    def result_paths(self) -> tuple[str, ...]:
        """Path of every output leaf."""
        found, _ = tree_flatten_with_path(self.result)
        return tuple(keystr(path) for path, _ in found)


def jitted(step: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """`step` under `jax.jit` with `options`, or as it is if it is jitted.

    Raises `InputError` for options of a step that has its own, and for those a plan decides.
    """
    decided = sorted({"in_shardings", "out_shardings", "device", "backend"} & set(options))
    if decided:
        raise InputError(f"{', '.join(decided)}: the plan decides these; pin inputs instead")
    if not hasattr(step, "trace"):
        return jax.jit(step, **options)
    if options:
        raise InputError(
            f"{', '.join(options)}: the step is jitted already and keeps its own options; "
            "give the function before jax.jit, or drop them"
        )
    return step


def trace_call(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "the step"
) -> TracedCall:
    """Trace a jitted step; arguments may be arrays or `jax.ShapeDtypeStruct`s.

    Raises `InputError` around the step's own exceptions.
    """
    try:
        traced = step.trace(*args, **kwargs)  # pyright: ignore[reportFunctionMemberAccess]
    except Exception as error:
        raise InputError(
            f"tracing {name} failed with {type(error).__name__}: {error}; "
            "the step must run under jax.jit with these arguments"
        ) from error
    infos, named_infos = traced.args_info
    positions = _traced_positions(step, args, infos)
    traced_args = (tuple(args[i] for i in positions), {n: kwargs[n] for n in named_infos})
    static = _rest(args, kwargs, positions, named_infos)
    in_shardings, out_shardings = _own_shardings(step, traced_args, positions, static)
    return TracedCall(
        jaxpr=traced.jaxpr,
        positions=positions,
        names=tuple(sorted(named_infos)),
        args=traced_args,
        static=static,
        donated_positions=frozenset(
            i for i, info in zip(positions, infos, strict=True) if _is_donated(info)
        ),
        donated_names=frozenset(n for n, info in named_infos.items() if _is_donated(info)),
        result=traced.out_info,
        in_shardings=in_shardings or (None,) * len(traced.jaxpr.in_avals),
        out_shardings=out_shardings or (None,) * len(traced.jaxpr.out_avals),
    )


def _own_shardings(
    step: Callable[..., Any],
    traced_args: tuple[tuple[Any, ...], Mapping[str, Any]],
    positions: Sequence[int],
    static: Mapping[int | str, Any],
) -> tuple[tuple[NamedSharding | None, ...], ...]:
    """What the step was jitted with for each leaf of its arguments and results, () where it cannot be read.

    A call of the step, traced, is one equation that has them.
    """

    def call(positional: tuple[Any, ...], named_args: Mapping[str, Any]) -> Any:
        at = {**static, **dict(zip(positions, positional, strict=True)), **named_args}
        count = sum(isinstance(key, int) for key in at)
        return step(
            *(at[i] for i in range(count)), **{k: v for k, v in at.items() if k not in range(count)}
        )

    equations = open_jaxpr(jax.make_jaxpr(call)(*traced_args))[0].eqns
    params = equations[0].params if len(equations) == 1 else {}
    return tuple(
        tuple(named(sharding, option) for sharding in params.get(option, ()))
        for option in ("in_shardings", "out_shardings")
    )


def _rest(
    args: Sequence[Any], kwargs: Mapping[str, Any], positions: Sequence[int], names: Iterable[str]
) -> dict[int | str, Any]:
    """Arguments that are not traced, by position or name."""
    found: dict[int | str, Any] = {i: arg for i, arg in enumerate(args) if i not in positions}
    return found | {name: arg for name, arg in kwargs.items() if name not in set(names)}


def _is_like(leaf: Any, aval: Any) -> bool:
    array = leaf if hasattr(leaf, "dtype") else jax.typeof(leaf)
    weak = getattr(array, "weak_type", False)
    return array.shape == aval.shape and array.dtype == aval.dtype and weak == aval.weak_type


def _is_donated(info: Any) -> bool:
    return any(leaf.donated for leaf in jax.tree.leaves(info))


def _traced_positions(
    step: Callable[..., Any], args: Sequence[Any], infos: Sequence[Any]
) -> tuple[int, ...]:
    """Which positional arguments `infos` describe: the others are static."""
    if len(infos) == len(args):
        return tuple(range(len(args)))
    static = static_positions(step, len(args))
    if static is not None:
        return tuple(i for i in range(len(args)) if i not in static)
    trees = [jax.tree.structure(info) for info in infos]
    fitting = [
        chosen
        for chosen in combinations(range(len(args)), len(infos))
        if [jax.tree.structure(args[i]) for i in chosen] == trees
    ]
    if len(fitting) != 1:
        raise InputError(
            f"cannot tell which of the {len(args)} positional arguments are static; "
            "pass the static ones by keyword"
        )
    return fitting[0]
