"""Step -> HLO -> problem. Arguments may be `jax.ShapeDtypeStruct`s: nothing is allocated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
import hashlib
from pathlib import Path
from typing import Any

import jax

from automap.choices import Layers
from automap.errors import InputError
from automap.jax_compat import weak_shape
from automap.jaxpr.hosted import HostedLeaves
from automap.jaxpr.reemit import Reemitter
from automap.program.imposed import agreed
from automap.program.problem import Problem
from automap.program.problem_build import build_problem
from automap.step.call import TracedCall
from automap.step.lost_state import lost_state
from automap.step.own_shardings import ImposedEnds, OwnShardings
from automap.step.step import traced_call
from automap.step.user_mesh import UserMesh, user_mesh
from hlo_tools.collector import collector_paused
from hlo_tools.errors import HloError
from hlo_tools.graph import Graph, flatten
from hlo_tools.module import Module
from hlo_tools.read import read_module
from hlo_tools.read.proto import decode_module
from hlo_tools.rules import Notation


# HLO's names of element types that differ from JAX's.
_JAX_DTYPES = {
    "pred": "bool",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    **{
        f"{k}{n}": f"{w}{n}"
        for k, w in (("s", "int"), ("u", "uint"))
        for n in (1, 2, 4, 8, 16, 32, 64)
    },
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input or output of a step as JAX sees it (a random key is one element, not its words)."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = False


@dataclass(frozen=True)
class Workload:
    """An analysed step, with the means to replay it unless it came from a file.

    `mesh` is what shardings in the user's code name, `ends` are those of a jitted step's inputs and
    outputs; `arguments` are what the target function was called with, and `call` is the traced one.
    """

    target: str
    problem: Problem
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    hlo_sha256: str
    reemitter: Reemitter | None = None
    mesh: UserMesh | None = None
    ends: ImposedEnds = field(default_factory=ImposedEnds)
    rules: Mapping[str, Notation] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    call: TracedCall | None = field(default=None, repr=False, compare=False)


@collector_paused()
def trace_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    platform: str = "cpu",
    target: str = "<step>",
    rules: Mapping[str, Notation] | None = None,
    layers: Layers = "folded",
) -> Workload:
    """Trace and lower `step` for `platform` ("cpu", "cuda", "tpu"), on any host.

    A `jax.jit`-ed step keeps its donation; `rules` are the user's (`automap.step.rules`), `layers`
    says whether equal ones share their decisions. Raises `InputError` around the step's own
    exceptions.
    """
    call = traced_call(step, args, kwargs, name=target)
    return lower_call(call, platform=platform, target=target, rules=rules or {}, layers=layers)


@collector_paused()
def lower_call(
    call: TracedCall,
    *,
    platform: str,
    target: str,
    rules: Mapping[str, Notation],
    layers: Layers = "folded",
    arguments: Mapping[str, str] | None = None,
) -> Workload:
    """Lower a traced call for `platform` and analyse it; `arguments` are recorded. Raises
    `InputError` if it does not lower.
    """
    reemitter = Reemitter(call.jaxpr, rules)
    mesh = mesh_of_call(call, reemitter)
    avals = call.jaxpr.in_avals
    module, warnings = _module(reemitter, avals, platform, target)
    lost = lost_state(call)
    # In HLO a typed key is an array of words like any other.
    is_key = [jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in avals]
    problem = build_problem(
        module,
        paths=call.paths,
        state_map=agreed(call.ends, call.state),
        rng_inputs=frozenset(i for i, key in enumerate(is_key) if key),
        donated=call.donated,
        user_rules=rules,
        kernels=tuple(reemitter.kernels.values()),
        layers=layers,
        ends=call.ends,
        manual_sizes=(mesh and mesh.sizes) or (),
        warnings=(*warnings, *(() if lost is None else (lost,))),
    )
    return Workload(
        target=target,
        problem=replace(problem, hosted=HostedLeaves.of(call).inputs),
        inputs=_leaves(call.paths, avals),
        outputs=_leaves(call.result_paths, jax.tree.leaves(call.result)),
        hlo_sha256=fingerprint(problem.graph),
        reemitter=reemitter,
        mesh=mesh,
        ends=call.ends,
        rules=rules,
        arguments=arguments or {},
        call=call,
    )


@collector_paused()
def program_sha256(call: TracedCall, platform: str, rules: Mapping[str, Notation]) -> str:
    """The fingerprint of the program that a traced call is lowered to, as `Workload.hlo_sha256`."""
    module, _ = _module(Reemitter(call.jaxpr, rules), call.jaxpr.in_avals, platform, "the step")
    return fingerprint(flatten(module, rules))


@collector_paused()
def larger_graph(workload: Workload, leaves: Sequence[int], platform: str) -> Graph:
    """The program of a workload's call whose leaves of these numbers are twice as long.

    Raises `InputError` if the step cannot be traced or lowered so.
    """
    assert workload.call is not None  # noqa: S101 - the caller has looked
    arrays = [weak_shape(aval) for aval in workload.call.jaxpr.in_avals]
    for n in leaves:
        shape = (2 * arrays[n].shape[0], *arrays[n].shape[1:])
        arrays[n] = jax.ShapeDtypeStruct(shape, arrays[n].dtype, weak_type=arrays[n].weak_type)
    call = workload.call.with_arrays(arrays)
    reemitter = Reemitter(call.jaxpr, workload.rules)
    module, _ = _module(reemitter, call.jaxpr.in_avals, platform, workload.target)
    return flatten(module, workload.rules)


def without_own_shardings(call: TracedCall, rules: Mapping[str, Notation]) -> TracedCall:
    """The call of the same step with the shardings in its code taken out, those of `shard_map`
    apart, which belong to what its body computes.
    """
    avals = [weak_shape(aval) for aval in call.jaxpr.in_avals]
    jaxpr = jax.jit(Reemitter(call.jaxpr, rules).freed()).trace(*avals).jaxpr
    return replace(call, jaxpr=jaxpr, own_shardings=OwnShardings({}, {}))


def mesh_of_call(call: TracedCall, reemitter: Reemitter) -> UserMesh | None:
    """The mesh of all shardings in a step's code. Raises `InputError` if they are on several."""
    given = (*call.user_shardings, *reemitter.user_shardings)
    return user_mesh(given, reemitter.manual_shardings)


def _module(
    reemitter: Reemitter, avals: Sequence[Any], platform: str, target: str
) -> tuple[Module, tuple[str, ...]]:
    """The step lowered for a platform, every equation in the scope of its site, and warnings."""
    flat = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    # Unused arguments too: parameter n of the HLO is leaf n.
    scoped = jax.jit(reemitter.scoped(), keep_unused=True)
    lowered, warnings = _lowered(scoped, flat, platform, target)
    return decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()), warnings


def _lowered(
    scoped: Any, avals: Sequence[Any], platform: str, target: str
) -> tuple[Any, tuple[str, ...]]:
    """The lowered step, with warnings.

    What calls back into Python can only be lowered for the platform that JAX runs on.
    """
    warnings: tuple[str, ...] = ()
    errors: list[Exception] = []
    # The error that is shown is that of the platform which was asked for.
    for name in dict.fromkeys((platform, "cpu")):
        try:
            return scoped.trace(*avals).lower(lowering_platforms=(name,)), warnings
        except Exception as error:  # noqa: BLE001 - JAX raises what it likes
            errors.append(error)
            reason = str(error).partition("\n")[0]
            warnings = (f"lowered for cpu, as lowering for {platform} failed: {reason}",)
    error = errors[0]
    raise InputError(
        f"lowering {target} for {platform} failed with {type(error).__name__}: {error}"
    ) from error


def _leaves(paths: Sequence[str], arrays: Sequence[Any]) -> tuple[Leaf, ...]:
    return tuple(
        Leaf(path, tuple(array.shape), str(array.dtype), bool(getattr(array, "weak_type", False)))
        for path, array in zip(paths, arrays, strict=True)
    )


@collector_paused()
def read_workload(
    path: str | Path,
    rules: Mapping[str, Notation] | None = None,
    layers: Layers = "folded",
) -> Workload:
    """A workload from HLO text, proto, StableHLO or a dump folder; roles are read from the
    program.
    """
    try:
        module = read_module(path)
        problem = build_problem(
            module, user_rules=rules, layers=layers, warnings=_nameless_shardings(module)
        )
    except HloError as error:
        raise InputError(str(error)) from error
    graph = problem.graph
    # Groups of a shard_map's collectives are device numbers: which axes they are is not in HLO.
    if graph.local_ops:
        raise InputError(
            f"{path} holds a shard_map, whose axes have no names in HLO; plan the Python step "
            "itself, module:function"
        )
    return Workload(
        target=str(path),
        problem=problem,
        inputs=_leaves_of_values(graph, problem.paths, graph.inputs),
        outputs=_leaves_of_values(
            graph, [f"[{i}]" for i in range(len(graph.outputs))], graph.outputs
        ),
        hlo_sha256=fingerprint(graph),
        rules=rules or {},
    )


def _nameless_shardings(module: Module) -> tuple[str, ...]:
    """A warning if a program's values have shardings already."""
    count = sum(
        instruction.attributes.custom_call_target in ("Sharding", "xla.sdy.FuncResultSharding")
        for computation in module.computations.values()
        for instruction in computation.instructions
    )
    return (
        (
            f"{count} sharding annotations of the program are left out, as they are on devices and "
            "have no axis names; plan the Python step itself to keep its constraints",
        )
        if count
        else ()
    )


def _leaves_of_values(
    graph: Graph, paths: Sequence[str], values: Sequence[int]
) -> tuple[Leaf, ...]:
    arrays = [graph.values[v] for v in values]
    return tuple(
        Leaf(path, array.dims, _JAX_DTYPES.get(array.dtype, array.dtype))
        for path, array in zip(paths, arrays, strict=True)
    )


def fingerprint(graph: Graph) -> str:
    """SHA-256 of the program's structure: ops, shapes and data flow, without names or source
    lines.
    """
    # Values are numbered in the order of tracing, so equal programs give equal text.
    digest = hashlib.sha256()
    for value in graph.values:
        digest.update(f"{value.dtype}{value.dims}".encode())
    for op in graph.ops:
        attributes = (op.instruction.dimensions, op.instruction.attributes)
        line = (op.opcode, op.inputs, op.outputs, op.trip_count, attributes)
        digest.update(repr(line).encode())
    digest.update(repr((graph.inputs, graph.outputs)).encode())
    return digest.hexdigest()
