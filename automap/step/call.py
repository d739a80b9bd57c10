"""One call of a step: which of its arguments are traced, and what tracing gave.

    leaves    arrays of a call in flattened argument order: positional arguments first, keyword
              arguments by name after them, static ones left out
                                                                          -> in: `TracedCall.leaves`
    paths     `jax.tree_util.keystr` of each leaf, counted over all positional arguments, so that
              a static one before it does not move it; a keyword argument starts with its name

What is traced is a function that is jitted already (`automap.step.step` makes one of any step).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, AxisType
from jax.tree_util import DictKey, SequenceKey, keystr, tree_flatten_with_path

from automap.errors import AutomapError, InputError
from automap.jax_compat import (
    cudnn_assumed,
    lacks_cudnn,
    open_jaxpr,
    static_arguments,
    weak_shape,
)
from automap.plan.levers import LeversRecord
from automap.step.own_shardings import ImposedEnds, OwnShardings, own_shardings
from automap.step.raised import raised_text
from automap.step.state import match_state
from automap.step.traced_result import UPDATED
from automap.step.user_constraints import UserSharding


# What JAX says of a PartitionSpec, and of a shard_map without a mesh, outside of any mesh.
_NEEDS_MESH = ("requires a non-empty mesh in context", "The context mesh cannot be empty")

# How JAX names the types of PyTorch's tensors, and of torchax's, which it does not trace.
_TENSORS = ("'torchax.tensor.", "'torch.Tensor'")

DonatedBy = Literal["the function", "a call inside"]


@dataclass(frozen=True)
class TracedCall:
    """A step traced with the arguments of one call.

    `function` is the jitted function that was traced. `positions` and `names` are the positional
    and keyword arguments that are traced; `args` are those arguments, `(tuple, dict)`, and `static`
    the others by position or name. `result` is the step's result as a tree of shapes.
    `own_shardings` are what it was jitted with. With `levers` of a plan `jaxpr` is what they make
    of the step's own, which is `plain_jaxpr` then (`automap.jaxpr.rematerialize`).
    """

    function: Callable[..., Any]
    jaxpr: Any
    positions: tuple[int, ...]
    names: tuple[str, ...]
    args: tuple[tuple[Any, ...], dict[str, Any]]
    static: Mapping[int | str, Any]
    donated_positions: frozenset[int]
    donated_names: frozenset[str]
    result: Any
    own_shardings: OwnShardings
    levers: LeversRecord | None = None
    plain_jaxpr: Any = None

    @property
    def own_jaxpr(self) -> Any:
        """The equations of the step as it was written, without levers."""
        return self.jaxpr if self.levers is None else self.plain_jaxpr

    def with_arrays(self, arrays: Sequence[Any]) -> "TracedCall":
        """The call with other arrays, or `jax.ShapeDtypeStruct`s, for its leaves. Raises
        `InputError` as `trace_call`.
        """
        # A trace anew: shapes may decide what the step does.
        return trace_call(self.function, *self.arguments(arrays))

    def arguments(self, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the function, with these leaves and the call's
        static ones.
        """
        traced, named = jax.tree.unflatten(self.tree, arrays)
        positional = {
            **dict(zip(self.positions, traced, strict=True)),
            **{key: value for key, value in self.static.items() if isinstance(key, int)},
        }
        fixed = {key: value for key, value in self.static.items() if isinstance(key, str)}
        args = [value for _, value in sorted(positional.items(), key=lambda item: item[0])]
        return args, {**named, **fixed}

    @cached_property
    def tree(self) -> Any:
        """The structure of `args`."""
        return jax.tree.structure(self.args)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Path of every leaf."""
        leaves, _ = tree_flatten_with_path(self.args)
        return tuple(keystr(self._from_root(path)) for path, _ in leaves)

    def _from_root(self, path: tuple[Any, ...]) -> tuple[Any, ...]:
        # `args` is a pair: keyword arguments are its second part, and their paths begin with the
        # name.
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

    @cached_property
    def state(self) -> dict[int, int]:
        """Numbers of the outputs that are new versions of inputs, with those of the inputs.

        What the step changes in place says it by its path, the others by their trees.
        """
        number = {UPDATED + path: i for i, path in enumerate(self.paths)}
        # A path that begins with `updated` is that of the argument which was changed.
        in_place = {
            output: number[path] for output, path in enumerate(self.result_paths) if path in number
        }
        return match_state(self.args, self.result, self.donated, in_place)

    def _with_used_donations(self) -> "TracedCall":
        """Without arguments that are donated, but of which the result has no new version.

        A library may donate all that it is given; what cannot be used JAX would warn of.
        """
        used = {self.paths[number].partition("]")[0] for number in self.state.values()}
        return replace(
            self,
            donated_positions=frozenset(i for i in self.donated_positions if f"[{i}" in used),
            donated_names=frozenset(n for n in self.donated_names if f"[{n!r}" in used),
        )

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
        leaves, _ = tree_flatten_with_path(self.result)
        return tuple(keystr(path) for path, _ in leaves)


def _without_devices(tree: Any) -> Any:
    """A tree of arguments with shapes in the place of JAX's arrays.

    Where arrays lie is the plan's to decide: on a mesh a step would be traced otherwise
    (derivatives are moved to it), and those on several stages of a pipeline have no devices in
    common.
    """
    return jax.tree.map(
        lambda leaf: weak_shape(jax.typeof(leaf)) if isinstance(leaf, jax.Array) else leaf, tree
    )


def is_jitted(function: Callable[..., Any]) -> bool:
    """Whether a function is one of `jax.jit`."""
    return isinstance(function, _jitted_type())


@cache
def _jitted_type() -> type:
    return type(jax.jit(_is_donated))


def trace_call(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str = "the step",
    mesh: Sequence[tuple[str, int]] | None = None,
    donated_by: DonatedBy = "the function",
) -> TracedCall:
    """Trace a jitted step; arguments may be arrays or `jax.ShapeDtypeStruct`s.

    `mesh` has the axes, (name, size), for a step that has PartitionSpecs alone and is called
    outside of any mesh. `donated_by` says whose options have what is donated. Raises `InputError`
    around the step's own exceptions.
    """
    # A step may raise anything, `SystemExit` too; Ctrl-C is the user's.
    try:
        return _traced(step, args, kwargs, donated_by)
    except (AutomapError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if mesh is None or not _needs_mesh(error):
            raise _failed(name, error) from error
    sizes, names = tuple(size for _, size in mesh), tuple(name for name, _ in mesh)
    abstract = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    try:
        with jax.sharding.use_abstract_mesh(abstract):
            return _traced(step, args, kwargs, donated_by)
    except (AutomapError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failed(name, error) from error


def _needs_mesh(error: BaseException) -> bool:
    return any(text in str(error) for text in _NEEDS_MESH)


def _failed(name: str, error: BaseException) -> InputError:
    text = str(error)
    if any(tensor in text for tensor in _TENSORS):
        return InputError(
            f"tracing {name} failed: its arguments are tensors of PyTorch, and JAX traces arrays; "
            "for a step on tensors of torchax write "
            "torchax.interop.torch_view(automap.parallelize(torchax.interop.jax_view(step)))"
        )
    if not _needs_mesh(error):
        return InputError(
            f"tracing {name} failed with {raised_text(error)}; the step must run under jax.jit "
            "with these arguments"
        )
    if text.startswith("jit"):
        return InputError(
            f"tracing {name} failed: its in_shardings or out_shardings have a PartitionSpec alone, "
            "which needs a mesh to be on; write NamedSharding(mesh, spec), or call it under "
            "jax.set_mesh(mesh)"
        )
    return InputError(
        f"tracing {name} failed: it has a PartitionSpec alone, or a shard_map, which needs a mesh "
        "to be on; give it with --mesh data=4,model=2, write NamedSharding(mesh, spec), or call "
        "it under jax.set_mesh(mesh)"
    )


def _traced_anywhere(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> jax.stages.Traced:
    """What JAX traces of a jitted step; cuDNN's attention also where there is no cuDNN."""
    trace: Callable[..., jax.stages.Traced] = step.trace  # pyright: ignore[reportFunctionMemberAccess]
    try:
        return trace(*args, **kwargs)
    except RuntimeError as error:
        if not lacks_cudnn(error):
            raise
    with cudnn_assumed():
        return trace(*args, **kwargs)


def _traced(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], donated_by: DonatedBy
) -> TracedCall:
    # JAX takes shapes in the place of arrays; static arguments go through as they are.
    shapes, named_shapes = _without_devices((tuple(args), dict(kwargs)))
    traced = _traced_anywhere(step, shapes, named_shapes)
    # JAX leaves static arguments out of this; their positions are not said.
    infos, named_infos = traced.args_info
    positions = _traced_positions(step, args, infos)
    traced_args = (tuple(args[i] for i in positions), {n: kwargs[n] for n in named_infos})
    traced_shapes = (tuple(shapes[i] for i in positions), {n: named_shapes[n] for n in named_infos})
    static = _rest(args, kwargs, positions, named_infos)
    if donated_by == "a call inside":
        infos, named_infos = jax.tree.unflatten(
            jax.tree.structure(traced_args), map(_Donation, _donated_inside(traced.jaxpr))
        )
    call = TracedCall(
        function=step,
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
    return call if donated_by == "the function" else call._with_used_donations()


@dataclass(frozen=True)
class _Donation:
    """Whether a leaf is donated, as JAX's `args_info` says it."""

    donated: bool


def _donated_inside(jaxpr: Any) -> list[bool]:
    """For each input of a jaxpr, whether a jitted function that it calls donates it."""
    inner, _ = open_jaxpr(jaxpr)
    donated = {
        var
        for eqn in inner.eqns
        for var, flag in zip(eqn.invars, eqn.params.get("donated_invars", ()))
        if flag
    }
    return [var in donated for var in inner.invars]


def _rest(
    args: Sequence[Any], kwargs: Mapping[str, Any], positions: Sequence[int], names: Iterable[str]
) -> dict[int | str, Any]:
    """Arguments that are not traced, by position or name."""
    untraced: dict[int | str, Any] = {i: arg for i, arg in enumerate(args) if i not in positions}
    return untraced | {name: arg for name, arg in kwargs.items() if name not in set(names)}


def _is_donated(info: Any) -> bool:
    leaves = jax.tree.leaves(info)
    return bool(leaves) and all(leaf.donated for leaf in leaves)


def _traced_positions(
    step: Callable[..., Any], args: Sequence[Any], infos: Sequence[Any]
) -> tuple[int, ...]:
    """Which positional arguments `infos` describe: the others are static."""
    if len(infos) == len(args):
        return tuple(range(len(args)))
    static = static_arguments(step, len(args))
    if static is not None:
        return tuple(i for i in range(len(args)) if i not in static[0])
    # JAX does not say: the arguments whose structures fit, if that is one choice only.
    trees = [jax.tree.structure(info) for info in infos]
    fitting = [
        chosen
        for chosen in combinations(range(len(args)), len(infos))
        if [jax.tree.structure(args[i]) for i in chosen] == trees
    ]
    if len(fitting) != 1:
        raise InputError(
            f"cannot tell which of the {len(args)} positional arguments are static; pass the "
            "static ones by keyword"
        )
    return fitting[0]
