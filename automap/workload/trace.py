"""Step -> HLO -> problem. Arguments may be `jax.ShapeDtypeStruct`s: nothing is allocated.

Which outputs are new versions of which inputs is read from the trees (`match_state`): the largest output
subtrees that equal an input subtree in structure, shapes and types; each input is used once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import hashlib
from pathlib import Path
from typing import Any

import jax

from automap.apply.reemit import Reemitter
from automap.errors import InputError
from automap.space.problem import Problem, build_problem
from hlo_tools.errors import HloError
from hlo_tools.graph import Graph
from hlo_tools.proto import decode_module
from hlo_tools.read import read_module


@dataclass(frozen=True)
class Workload:
    """An analysed step, with the means to replay it unless it came from a file. `output_paths` are `jax.tree_util.keystr` of the result tree."""

    target: str
    problem: Problem
    output_paths: tuple[str, ...]
    hlo_sha256: str
    reemitter: Reemitter | None = None


def trace_step(
    step: Callable[..., Any], args: Sequence[Any], *, platform: str = "cpu", target: str = "<step>"
) -> Workload:
    """Trace and lower `step` for `platform` ("cpu", "cuda", "tpu"), on any host.

    A `jax.jit`-ed step keeps its donation.  Raises `InputError` around the step's own exceptions.
    """
    try:
        traced = (step if hasattr(step, "trace") else jax.jit(step)).trace(*args)
        reemitter = Reemitter(traced.jaxpr)
        flat = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
            for a in traced.jaxpr.in_avals
        ]
        scoped = jax.jit(reemitter.scoped(), keep_unused=True).trace(*flat)
        whole = scoped.lower(lowering_platforms=(platform,))
    except Exception as error:
        raise InputError(
            f"tracing {target} failed with {type(error).__name__}: {error}; "
            "the step must run under jax.jit with these arguments"
        ) from error
    leaves, _ = jax.tree_util.tree_flatten_with_path(tuple(args))
    # The donation flags are those of the step as the user jitted it.
    donated = jax.tree.leaves(jax.tree.map(lambda info: info.donated, traced.args_info))
    state_map = match_state(tuple(args), traced.out_info)
    keys = [i for i, (_, leaf) in enumerate(leaves) if _is_key(leaf)]
    problem = build_problem(
        decode_module(_proto(whole)),
        paths=[jax.tree_util.keystr(path) for path, _ in leaves],
        state_map=state_map,
        rng_inputs=frozenset(keys),
        donated=frozenset(i for i, is_donated in enumerate(donated) if is_donated),
    )
    outputs, _ = jax.tree_util.tree_flatten_with_path(traced.out_info)
    paths = tuple(jax.tree_util.keystr(path) for path, _ in outputs)
    return Workload(target, problem, paths, fingerprint(problem.graph), reemitter)


def _proto(lowered: Any) -> bytes:
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def read_workload(path: str | Path) -> Workload:
    """A workload from HLO text, proto, StableHLO or a dump folder; roles are read from the program."""
    try:
        problem = build_problem(read_module(path))
    except HloError as error:
        raise InputError(str(error)) from error
    paths = tuple(f"[{i}]" for i in range(len(problem.graph.outputs)))
    return Workload(str(path), problem, paths, fingerprint(problem.graph))


def fingerprint(graph: Graph) -> str:
    """SHA-256 of the program's structure: ops, shapes and data flow, without names or source lines."""
    digest = hashlib.sha256()
    for value in graph.values:
        digest.update(f"{value.dtype}{value.dims}".encode())
    for op in graph.ops:
        attributes = (op.instruction.dimensions, op.instruction.dot, op.instruction.conv)
        line = (op.opcode, op.inputs, op.outputs, op.trip_count, attributes)
        digest.update(repr(line).encode())
    digest.update(repr((graph.inputs, graph.outputs)).encode())
    return digest.hexdigest()


def match_state(inputs: Any, outputs: Any) -> dict[int, int]:
    """Flat output index -> flat input index."""
    sources = _subtrees(inputs, 0)
    free = [True] * len(jax.tree.leaves(inputs))
    found: dict[int, int] = {}
    covered: set[int] = set()
    for start, length, signature in sorted(_subtrees(outputs, 0), key=lambda s: (-s[1], s[0])):
        if covered & set(range(start, start + length)):
            continue
        for source, _, other in sources:
            if other == signature and all(free[source : source + length]):
                found.update((start + n, source + n) for n in range(length))
                covered.update(range(start, start + length))
                free[source : source + length] = [False] * length
                break
    return {o: found[o] for o in sorted(found)}


def _subtrees(tree: Any, start: int) -> list[tuple[int, int, object]]:
    """(first leaf, number of leaves, signature) of every subtree that holds an array, itself first."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = tuple(
        (tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves if hasattr(leaf, "shape")
    )
    result: list[tuple[int, int, object]] = []
    # A lone scalar equals every other scalar: a loss is no new version of a learning rate.
    is_scalar = len(arrays) == 1 and not arrays[0][0]
    if arrays and len(arrays) == len(leaves) and not is_scalar:
        result.append((start, len(leaves), (structure, arrays)))
    children = structure.children()
    at = start
    for child in children:
        inner = jax.tree.unflatten(child, leaves[at - start : at - start + child.num_leaves])
        result += _subtrees(inner, at)
        at += child.num_leaves
    return result
