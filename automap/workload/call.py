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
from pathlib import Path
import traceback
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType
from jax.tree_util import DictKey, SequenceKey, keystr, tree_flatten_with_path

from automap.apply.user_constraints import UserSharding
from automap.errors import AutomapError, InputError
from automap.jax_compat import static_positions, weak_shape
from automap.space.imposed import ImposedEnds
from automap.workload.own_shardings import OwnShardings, own_shardings


# What JAX says of a PartitionSpec, and of a shard_map without a mesh, outside of any mesh.
_NEEDS_MESH = ("requires a non-empty mesh in context", "The context mesh cannot be empty")


@dataclass(frozen=True)
class TracedCall:
    """A step traced with the arguments of one call.

    `positions` and `names` are the positional and keyword arguments that are traced; `args` are
    those arguments, `(tuple, dict)`, and `static` the others by position or name. `result` is the
    step's result as a tree of shapes. `own_shardings` are what it was jitted with.
    """

    jaxpr: Any
    positions: tuple[int, ...]
    names: tuple[str, ...]
    args: tuple[tuple[Any, ...], dict[str, Any]]
    static: Mapping[int | str, Any]
    donated_positions: frozenset[int]
    donated_names: frozenset[str]
    result: Any
    own_shardings: OwnShardings

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
        return self.own_shardings.ends(self.jaxpr.in_avals, self.jaxpr.out_avals)

    @property
    def user_shardings(self) -> tuple[UserSharding, ...]:
        """The step's own shardings with where they are."""
        return self.own_shardings.named(self.paths, self.result_paths)

    @cached_property
    def result_paths(self) -> tuple[str, ...]:
        """Path of every output leaf."""
        found, _ = tree_flatten_with_path(self.result)
        return tuple(keystr(path) for path, _ in found)


def _without_devices(tree: Any) -> Any:
    """A tree of arguments with shapes in the place of JAX's arrays.

    Where arrays lie is the plan's to decide: on a mesh a step would be traced otherwise (derivatives are moved to it), and
    those on several stages of a pipeline have no devices in common.
    """
    return jax.tree.map(
        lambda leaf: weak_shape(jax.typeof(leaf)) if isinstance(leaf, jax.Array) else leaf, tree
    )


def jitted(step: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """`step` under `jax.jit` with `options`, or as it is if it is jitted.

    Raises `InputError` for options of a step that has its own, and for those a plan decides.
    """
    decided = sorted({"in_shardings", "out_shardings", "device", "backend"} & set(options))
    if decided:
        raise InputError(f"{', '.join(decided)}: the plan decides these; pin inputs instead")
    if not hasattr(step, "trace"):
        try:
            return jax.jit(step, **options)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"jax.jit does not take the step: {error}; a step is a function of arrays, and its options are those of "
                "jax.jit"
            ) from error
    if options:
        raise InputError(
            f"{', '.join(options)}: the step is jitted already and keeps its own options; "
            "give the function before jax.jit, or drop them"
        )
    return step


def trace_call(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str = "the step",
    mesh: Sequence[tuple[str, int]] | None = None,
) -> TracedCall:
    """Trace a jitted step; arguments may be arrays or `jax.ShapeDtypeStruct`s.

    `mesh` has the axes, (name, size), for a step that has PartitionSpecs alone and is called outside of any mesh.
    Raises `InputError` around the step's own exceptions.
    """
    try:
        return _traced(step, args, kwargs)
    except (AutomapError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if mesh is None or not _needs_mesh(error):
            raise _failed(name, error) from error
    sizes, names = tuple(size for _, size in mesh), tuple(name for name, _ in mesh)
    abstract = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    try:
        with jax.sharding.use_abstract_mesh(abstract):
            return _traced(step, args, kwargs)
    except (AutomapError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failed(name, error) from error


def _needs_mesh(error: BaseException) -> bool:
    return any(text in str(error) for text in _NEEDS_MESH)


def _failed(name: str, error: BaseException) -> InputError:
    text = str(error)
    if not _needs_mesh(error):
        return InputError(
            f"tracing {name} failed with {type(error).__name__}{_where(error)}: {text}; "
            "the step must run under jax.jit with these arguments"
        )
    if text.startswith("jit"):
        return InputError(
            f"tracing {name} failed: its in_shardings or out_shardings have a PartitionSpec alone, which needs a mesh "
            "to be on; write NamedSharding(mesh, spec), or call it under jax.set_mesh(mesh)"
        )
    return InputError(
        f"tracing {name} failed: it has a PartitionSpec alone, or a shard_map, which needs a mesh to be on; give it with "
        "--mesh data=4,model=2, write NamedSharding(mesh, spec), or call it under jax.set_mesh(mesh)"
    )


def _traced(step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TracedCall:
    shapes, named_shapes = _without_devices((tuple(args), dict(kwargs)))
    traced = step.trace(*shapes, **named_shapes)  # pyright: ignore[reportFunctionMemberAccess]
    infos, named_infos = traced.args_info
    positions = _traced_positions(step, args, infos)
    traced_args = (tuple(args[i] for i in positions), {n: kwargs[n] for n in named_infos})
    traced_shapes = (tuple(shapes[i] for i in positions), {n: named_shapes[n] for n in named_infos})
    static = _rest(args, kwargs, positions, named_infos)
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
        own_shardings=own_shardings(step, traced_shapes, positions, static),
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


def _where(error: BaseException) -> str:
    """The last line of the step's own code that an exception came through."""
    others = str(Path(jax.__file__).parent), str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*others, "<"))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
