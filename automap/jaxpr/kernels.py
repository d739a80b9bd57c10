"""Equations in the place of a kernel of Pallas: one for the analysis, and one on a plan's mesh; and
cuDNN's attention on a plan's mesh.

    for the analysis   y = custom_call NAME@DIGEST (x), whose rule splits the kernel's batches and
                       states its work; nothing of Pallas is lowered, so any host can do it. A rule
                       of the user's says which steps of the grid are batches, whatever the body
                       reads                                            -> in: `stand_in`
    on a plan's mesh   y = shard_map(kernel of a device's own part)(x): a grid, arrays and index
                       maps divided as the kernel's results are pinned, for no partitioner splits
                       such a kernel (on TPUs it is refused)            -> in: `kernel_per_device`

A device runs the programs of its own part of each factor. In the smaller grid program p' along an
axis stands for program p of the whole one that has the same digits,

    p = sum over factors  low * ((p' // low') % size'),   size' = size / parts

and as its blocks are at the places that those of p have among the first device's, index maps are
f'(p') = f(p), without any offset                                       -> in: `_index_map`

cuDNN's attention has a partitioner of its own, in JAX, which XLA calls back while it compiles: such
a step can only be lowered for devices that are there, and compiled in the same process. Each device
has its own batches and heads instead                               -> in: `attention_per_device`

    y = shard_map(attention)(q, k, v, ...)      with the sharding of q that the plan gives the call

Axes that split the H heads of queries, major first, split the K heads of keys; where each device
has one of those, the axes that follow split the H / K queries of it alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
import hashlib
import math
from typing import Any, Final

import jax
from jax import lax
from jax.extend import core
from jax.interpreters import mlir
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from automap.errors import PlanError
from automap.jax_compat import (
    open_jaxpr,
    rebuild_jaxpr,
    smaller_pallas_call,
    weak_shape,
)
from automap.jaxpr.convolutions import Axes, dimension_axes, free_axes
from automap.jaxpr.grid_tables import GridFactor
from automap.jaxpr.pallas import BlockedArray, Kernel, read_kernel
from hlo_tools.rules import FactorKind, Notation, Rule, RuleBuilder, Work, shapes_text


_WHOLE = FactorKind.REPLICATION


@dataclass(frozen=True, slots=True)
class StandIn:
    """What stands for a kernel in the analysis: its name, that of the custom call, and its rule.

    `lack` says, for people, why it is not split, `has_steps` whether a rule could still split it,
    along a step of its grid; `has_given_rule` whether the user's rule is in it, `misfit` that it
    does not fit, with the shapes.
    """

    name: str
    target: str
    rule: Rule
    lack: str
    has_steps: bool
    has_given_rule: bool
    misfit: str


def stand_in(eqn: Any, rules: Mapping[str, Notation]) -> StandIn:
    """What stands for a kernel; `rules` are the user's."""
    operands, results = ([atom.aval.shape for atom in each] for each in (eqn.invars, eqn.outvars))
    kernel = read_kernel(eqn)
    name = str(eqn.params.get("name")) if kernel is None else kernel.call.name
    notation, given, misfit = rules.get(name), None, ""
    if notation is not None and notation.fits(operands, results):
        given = notation.rule(name, operands, results)
    elif notation is not None:
        misfit = f"{notation.text!r} does not fit its arrays, {shapes_text(operands, results)}"
    if kernel is None:
        rule = RuleBuilder(operands, results).build()
        lack = "this version of JAX writes such calls in a form that is not known"
    else:
        batches = kernel.batches if given is None else tuple(_passed(kernel, given))
        rule, lack = _rule(kernel, batches, given), "" if batches else "; ".join(kernel.reasons)
    # Plans are for a program: a kernel of the same name with another rule is another one.
    digest = hashlib.sha256(repr((operands, results, rule)).encode()).hexdigest()[:8]
    has_steps = kernel is not None and bool(kernel.steps)
    return StandIn(name, f"{name}@{digest}", rule, lack, has_steps, given is not None, misfit)


def _passed(kernel: Kernel, given: Rule) -> Iterator[GridFactor]:
    """The factors of the grid along which a rule of the user's passes."""
    dims = [dim for tensor in (*given.operands, *given.results) for dim in tensor]
    held = [dim for array in (*kernel.operands, *kernel.results) for dim in array.dims]
    for factor in kernel.steps:
        letters = {d[0] if d else -1 for d, factors in zip(dims, held) if factors[:1] == (factor,)}
        passes = (n >= 0 and given.factors[n].kind is FactorKind.PASSTHROUGH for n in letters)
        if len(letters) == 1 and all(passes):
            yield factor


def standing_in(eqn: Any, rules: Mapping[str, Notation]) -> Any:
    """The custom call in the place of a kernel."""
    made = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.outvars]
    call = jax.ffi.ffi_call(stand_in(eqn, rules).target, made)
    jaxpr = jax.make_jaxpr(call)(*(weak_shape(atom.aval) for atom in eqn.invars))
    (custom_call,) = open_jaxpr(jaxpr)[0].eqns
    return custom_call.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)


def _rule(kernel: Kernel, batches: Sequence[GridFactor], given: Rule | None) -> Rule:
    """The rule that splits batches; its work is what the user states, if a rule does."""
    builder = RuleBuilder(
        [array.shape for array in kernel.operands], [array.shape for array in kernel.results]
    )
    number = {factor: builder.add(size=factor.size) for factor in batches}
    for tensor, array in enumerate((*kernel.operands, *kernel.results)):
        for dim, factors in enumerate(array.dims):
            if number.keys().isdisjoint(factors):
                continue
            # What is no batch, and what is inside of a block, is whole on each device.
            parts = [
                number[f] if f in number else builder.add(size=f.size, kind=_WHOLE) for f in factors
            ]
            parts += [builder.add(size=array.rest[dim], kind=_WHOLE)] if array.rest[dim] > 1 else []
            builder.set(tensor, dim, tuple(parts))
    work = given and given.work
    return replace(builder.build(), work=work or Work(kernel.flops))


def kernel_per_device(
    eqn: Any, mesh: Mesh | AbstractMesh, results: Sequence[tuple[Axes, ...] | None]
) -> Any:
    """The `shard_map` equation in a kernel's place; `results` are the axes that split each
    dimension of each result, None for one that no axes are known of.

    Raises `PlanError` if they split what the grid does not step through.
    """
    kernel = read_kernel(eqn)
    axes: dict[GridFactor, Axes] = {}
    for number, split in enumerate(results):
        if kernel is not None and split is not None:
            for dim, names in enumerate(split):
                axes |= _split_factors(kernel, number, dim, names, mesh)
    local = eqn.params
    arrays = () if kernel is None else (*kernel.operands, *kernel.results)
    if kernel is not None and axes:
        local = _local_parameters(eqn, kernel, {f: _size(mesh, a) for f, a in axes.items()})
    specs = [_spec(array, axes) for array in arrays] or [PartitionSpec()] * (
        len(eqn.invars) + len(eqn.outvars)
    )
    per_device = jax.shard_map(
        lambda *operands: eqn.primitive.bind(*operands, **local),
        mesh=mesh,
        axis_names=free_axes(mesh),
        in_specs=tuple(specs[: len(eqn.invars)]),
        out_specs=specs[len(eqn.invars) :],
        check_vma=False,
    )
    traced = jax.make_jaxpr(per_device)(*(weak_shape(atom.aval) for atom in eqn.invars))
    (mapped,) = open_jaxpr(traced)[0].eqns
    return mapped.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)


def _size(mesh: Mesh | AbstractMesh, axes: Axes) -> int:
    return math.prod(mesh.shape[name] for name in axes)


def _split_factors(
    kernel: Kernel, result: int, dim: int, names: Axes, mesh: Mesh | AbstractMesh
) -> dict[GridFactor, Axes]:
    """The factors of one dimension of a result that axes split, major first."""
    left, axes = list(names), dict[GridFactor, Axes]()
    for factor in kernel.results[result].dims[dim]:
        held: Axes = ()
        while left and factor.size % _size(mesh, (*held, left[0])) == 0:
            held = (*held, left.pop(0))
        axes |= {factor: held} if held else {}
        # A device's part goes on inside of a factor only if that has one program on each.
        if _size(mesh, held) < factor.size:
            break
    # What is left may be axes of one device.
    if _size(mesh, tuple(left)) > 1:
        raise PlanError(
            f"{kernel.call.name}: dimension {dim} of its result {result} is split over "
            f"{', '.join(names)}; its grid {kernel.call.grid} does not step through it in as many "
            "whole parts. Was the plan edited, or is the rule given for it another kernel's?"
        )
    return axes


def _spec(array: BlockedArray, axes: Mapping[GridFactor, Axes]) -> PartitionSpec:
    return PartitionSpec(
        *(tuple(name for factor in dim for name in axes.get(factor, ())) for dim in array.dims)
    )


def _local_parameters(eqn: Any, kernel: Kernel, parts: Mapping[GridFactor, int]) -> dict[str, Any]:
    """The call's parameters on one of as many parts of each factor."""
    call = kernel.call
    divisor = [math.prod(n for f, n in parts.items() if f.axis == a) for a in range(len(call.grid))]
    shapes = [
        tuple(
            size // math.prod(parts.get(factor, 1) for factor in dim)
            for size, dim in zip(array.shape, array.dims)
        )
        for array in (*kernel.operands, *kernel.results)
    ]
    index_maps = [_index_map(kernel, block.index_map, parts) for block in call.blocks]
    grid = [size // by for size, by in zip(call.grid, divisor, strict=True)]
    return smaller_pallas_call(eqn, grid, shapes[call.leading :], index_maps)


def _index_map(kernel: Kernel, index_map: Any, parts: Mapping[GridFactor, int]) -> Any:
    """The index map of a smaller grid: that of the programs which its own stand for."""
    inner, consts = open_jaxpr(index_map)
    invars, outvars, eqns = list(inner.invars), list(inner.outvars), list[Any]()
    for axis in range(len(kernel.call.grid)):
        factors = [f for f in kernel.factors if f.axis == axis]
        # Where the major factor alone is split, the programs are the first ones of the whole grid.
        if not any(parts.get(factor, 1) > 1 for factor in factors[1:]):
            continue
        traced, _ = open_jaxpr(
            jax.make_jaxpr(lambda p, factors=factors: _whole_program(p, factors, parts))(
                jax.ShapeDtypeStruct((), jnp.int32)
            )
        )
        names = {traced.invars[0]: core.Var(invars[axis].aval), traced.outvars[0]: invars[axis]}
        for made in traced.eqns:
            names |= {v: core.Var(v.aval) for v in made.outvars if v not in names}
            eqns.append(
                made.replace(
                    invars=[a if isinstance(a, core.Literal) else names[a] for a in made.invars],
                    outvars=[names[v] for v in made.outvars],
                )
            )
        invars[axis] = names[traced.invars[0]]
    if not eqns:
        return index_map
    return rebuild_jaxpr(index_map, inner.constvars, consts, outvars, [*eqns, *inner.eqns], invars)


def _whole_program(
    program: jax.Array, factors: Sequence[GridFactor], parts: Mapping[GridFactor, int]
) -> jax.Array:
    """The program of the whole grid with the digits of a smaller one's, by factors major first."""
    whole, low = jnp.zeros((), program.dtype), 1
    for factor in reversed(factors):
        size = factor.size // parts.get(factor, 1)
        digit = lax.rem(lax.div(program, jnp.int32(low)), jnp.int32(size))
        whole, low = whole + digit * jnp.int32(factor.low), low * size
    return whole


_ATTENTION: Final = frozenset(
    {"dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"}
)
_QUERY, _KEY, _BIAS, _FIRST_PAGES = 0, 1, 3, 8


def is_attention(eqn: Any) -> bool:
    """Whether an equation is cuDNN's attention, of arrays that lie as [batch, length, heads,
    features] and not in pages.
    """
    if eqn.primitive.name not in _ATTENTION:
        return False
    pages = eqn.invars[_FIRST_PAGES : _FIRST_PAGES + 2]
    return eqn.params["layout"] == 0 and not any(math.prod(p.aval.shape) for p in pages)


def attention_per_device(eqn: Any, mesh: Mesh | AbstractMesh, queries: tuple[Axes, ...]) -> Any:
    """The `shard_map` equation in its place; `queries` are the axes that split each of their
    dimensions.

    Raises `PlanError` if they split what is no batch and no head.
    """
    batch, length, heads, features = queries
    if length or features:
        raise PlanError(
            f"cuDNN's attention with queries split over {queries}; allowed: batch and heads. Was "
            "the plan edited? Plan again"
        )
    key_heads = _axes_of_keys(eqn, heads, mesh)
    atoms = (*eqn.invars, *eqn.outvars)
    specs = [_attention_spec(eqn, atom, batch, heads, key_heads) for atom in atoms]
    results = specs[len(eqn.invars) :]
    # What samples or heads share, as a bias or a head of keys, gets the gradients of all.
    summed = [_summed(spec, batch, heads) for spec in results]

    def attention(*operands: Any) -> list[Any]:
        made = _without_devices().bind(*operands, call=_Call(eqn))
        return [lax.psum(y, axes) if axes else y for y, axes in zip(made, summed, strict=False)]

    per_device = jax.shard_map(
        attention,
        mesh=mesh,
        axis_names=free_axes(mesh),
        in_specs=tuple(specs[: len(eqn.invars)]),
        out_specs=results,
        check_vma=False,
    )
    traced = jax.make_jaxpr(per_device)(*(weak_shape(atom.aval) for atom in eqn.invars))
    (mapped,) = open_jaxpr(traced)[0].eqns
    return mapped.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)


def _axes_of_keys(eqn: Any, heads: Axes, mesh: Mesh | AbstractMesh) -> Axes:
    """The axes of query heads that split key heads too.

    Raises `PlanError` if a device would have query heads of parts of several key heads.
    """
    (n_heads, n_keys), parts = (eqn.invars[n].aval.shape[2] for n in (_QUERY, _KEY)), 1
    for number, name in enumerate(heads):
        if parts == n_keys and n_heads % _size(mesh, heads) == 0:
            return heads[:number]
        parts *= mesh.shape[name]
        if n_keys % parts:
            raise PlanError(
                f"cuDNN's attention of {n_heads} heads of queries and {n_keys} of keys, split over "
                f"{', '.join(f'{name}={mesh.shape[name]}' for name in heads)}; allowed: axes that "
                "divide the heads of keys, and behind them, where these are split into single "
                "heads, axes that divide the queries of each. Was the plan edited? Plan again"
            )
    return heads


def _attention_spec(
    eqn: Any, atom: Any, batch: Axes, heads: Axes, axes_of_keys: Axes
) -> PartitionSpec:
    """How one of its operands or results is split."""
    samples, _, n_heads, _ = eqn.invars[_QUERY].aval.shape
    key_heads, dims = eqn.invars[_KEY].aval.shape[2], atom.aval.shape
    if dims[0] not in (1, samples):
        return PartitionSpec()  # nothing, of what this call has not
    first = batch if dims[0] > 1 else ()
    is_bias = len(dims) == 4 and atom in (*eqn.invars[_BIAS : _BIAS + 1], *eqn.outvars[_BIAS:])
    # Statistics and biases have heads second.
    place = 1 if is_bias or len(dims) == 3 else 2
    if len(dims) < 3 or dims[place] not in (n_heads, key_heads):
        return PartitionSpec(first)
    own = heads if dims[place] == n_heads else axes_of_keys
    return PartitionSpec(first, *[()] * (place - 1), own if dims[place] > 1 else ())


def _summed(spec: PartitionSpec, batch: Axes, heads: Axes) -> Axes:
    """The axes of samples and heads that do not split a result."""
    held = {name for names in dimension_axes(spec, len(spec)) for name in names}
    return tuple(name for name in (*batch, *heads) if name not in held)


@dataclass(frozen=True, eq=False)
class _Call:
    """An equation's primitive with its parameters, which nobody looks into."""

    eqn: Any

    def __call__(self, *operands: Any) -> list[Any]:
        return self.eqn.primitive.bind(*operands, **self.eqn.params)


@cache
def _without_devices() -> core.Primitive:
    """A primitive that is lowered as what `call` does.

    JAX refuses to lower cuDNN's attention without devices wherever it finds it in a step, though
    within a `shard_map` it asks for none.
    """
    primitive = core.Primitive("without_devices")
    primitive.multiple_results = True

    def shapes(*avals: Any, call: _Call) -> list[Any]:
        return list(jax.make_jaxpr(call)(*avals).out_avals)

    primitive.def_abstract_eval(shapes)
    lowered = mlir.lower_fun(lambda *operands, call: call(*operands), multiple_results=True)
    mlir.register_lowering(primitive, lowered)
    return primitive
