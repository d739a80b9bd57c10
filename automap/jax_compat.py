"""The only file of this package that depends on what JAX does not promise to keep.

Checked with jax 0.10.2 and 0.12.0.1 (2026-11). `jax.extend` is public but changes without
deprecation: 0.12 merged ClosedJaxpr into Jaxpr, so a jaxpr is taken apart and put together only
here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import dataclasses
from dataclasses import dataclass
import importlib
import math
import types
from typing import Any, Protocol

import jax
from jax import memory
from jax.extend import core

from automap.errors import InputError
from hlo_tools.compiled.tpu_executable import optimized_module


def open_jaxpr(jaxpr: Any) -> tuple[Any, list[Any]]:
    """(jaxpr with `.constvars .invars .outvars .eqns`, values of its constvars)."""
    # Before 0.12 a bare Jaxpr (the parameter of remat) has no values of its own.
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", None) or ())


def rebuild_jaxpr(
    original: Any,
    constvars: Sequence[Any],
    consts: Sequence[Any],
    outvars: Any,
    eqns: Any,
    invars: Sequence[Any] | None = None,
) -> Any:
    """`original` with other equations, of the same class, with the same parameters if no `invars`
    are given.
    """
    inner, _ = open_jaxpr(original)
    debug_info = inner.debug_info
    if invars is not None:
        debug_info = debug_info._replace(arg_names=None, result_paths=None)
    # 0.12 takes the constants here; 0.10 wraps them around in a ClosedJaxpr.
    merged = core.ClosedJaxpr is core.Jaxpr
    rebuilt = core.Jaxpr(
        constvars,
        inner.invars if invars is None else invars,
        outvars,
        eqns,
        inner.effects,
        debug_info,
        inner.is_high,
        **({"consts": consts} if merged else {}),
    )
    return rebuilt if merged or inner is original else core.ClosedJaxpr(rebuilt, consts)


def with_values(jaxpr: Any) -> Any:
    """A jaxpr that can be run, of one that may have no values of its own."""
    inner, consts = open_jaxpr(jaxpr)
    return jaxpr if core.ClosedJaxpr is core.Jaxpr else core.ClosedJaxpr(inner, consts)


def new_jaxpr(name: str, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """A jaxpr that can be run; `name` is its own in messages of JAX."""
    effects = frozenset(effect for eqn in eqns for effect in eqn.effects)
    info = core.DebugInfo(name, name, None, None)
    return with_values(core.Jaxpr([], invars, outvars, eqns, effects, info))


def scan_split(eqn: Any) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are its carry."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    # Since 0.12 a tree says which operand is what.
    constants, carry, _ = eqn.params["ft_in"].update(list(range(len(eqn.invars)))).unpack()
    return len(list(constants)), len(list(carry))


@dataclass(frozen=True, slots=True)
class PallasBlock:
    """How one array of a `pallas_call` is read or written: `sizes` are those of its blocks, 0 where
    they are no blocks of one size; `index_map` is a jaxpr of the grid's indices and what is
    prefetched.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    index_map: Any


@dataclass(frozen=True, slots=True)
class PallasCall:
    """What a `pallas_call` equation says.

    `grid` has 0 for sizes that are known at run time only; `body_axes` are the axes of the grid
    that the body counts, `is_parallel` those declared so. Operands are `leading` ones (sizes of the
    grid, what is prefetched) and those of `blocks`, which go on with the results; `scratch` is how
    many memories the body works in. `stated_flops` is 0 where the call states none.
    """

    name: str
    grid: tuple[int, ...]
    body_axes: tuple[int, ...]
    is_parallel: tuple[bool, ...]
    leading: int
    blocks: tuple[PallasBlock, ...]
    aliases: tuple[tuple[int, int], ...]
    scratch: int
    body: Any
    stated_flops: int


def pallas_call(eqn: Any) -> PallasCall | None:
    """What a `pallas_call` says, None where this JAX writes it otherwise (its parameters are not
    public).
    """
    try:
        return _read_pallas_call(eqn.params)
    except (AttributeError, KeyError, TypeError):
        return None


def _read_pallas_call(params: Any) -> PallasCall:
    mapping, body = params["grid_mapping"], params["jaxpr"]
    grid = tuple(size if isinstance(size, int) else 0 for size in mapping.grid)
    vmapped = frozenset(mapping.vmapped_dims)
    body_axes = tuple(axis for axis in range(len(grid)) if axis not in vmapped)
    options, stated = params["compiler_params"], params["cost_estimate"]
    # Triton's options have no semantics: programs of a GPU's grid run in no order.
    unordered = options is not None and not hasattr(options, "dimension_semantics")
    declared = getattr(options, "dimension_semantics", None) or ()
    words = [str(getattr(word, "value", word)).lower() for word in declared]
    parallel = {axis for axis, word in zip(body_axes, words) if word.endswith("parallel")}
    blocks = tuple(
        PallasBlock(
            tuple(block.array_aval.shape),
            tuple(map(_block_size, block.block_shape)),
            block.index_map_jaxpr,
        )
        for block in mapping.block_mappings
    )
    described = str(params.get("name") or body.debug_info.func_src_info or "pallas_call")
    name, _, line = described.partition(" at ")
    return PallasCall(
        # A function without a name is called after its line, or all of them were one kernel.
        name=line.rpartition("/")[2] if name == "<lambda>" and line else name.partition(" ")[0],
        grid=grid,
        body_axes=body_axes,
        is_parallel=tuple(unordered or a in vmapped or a in parallel for a in range(len(grid))),
        leading=mapping.num_dynamic_grid_bounds + mapping.num_index_operands,
        blocks=blocks,
        aliases=tuple((a, b) for a, b in params["input_output_aliases"]),
        scratch=len(mapping.scratch_avals),
        body=body,
        stated_flops=int(getattr(stated, "flops", 0) or 0),
    )


def _block_size(dim: Any) -> int:
    """Elements of a block along a dimension, 0 where its index does not count blocks."""
    kind = type(dim).__name__
    if dim is None or kind == "Squeezed":
        return 1
    return dim if isinstance(dim, int) else (dim.block_size if kind == "Blocked" else 0)


def smaller_pallas_call(
    eqn: Any, grid: Sequence[int], shapes: Sequence[tuple[int, ...]], index_maps: Sequence[Any]
) -> dict[str, Any]:
    """The parameters of a `pallas_call` with another grid, and of its blocks other arrays and index
    maps.
    """
    mapping, stated = eqn.params["grid_mapping"], eqn.params["cost_estimate"]
    blocks = tuple(
        block.replace(array_aval=block.array_aval.update(shape=shape), index_map_jaxpr=index_map)
        for block, shape, index_map in zip(mapping.block_mappings, shapes, index_maps, strict=True)
    )
    # A size of 0 stands for one that is known at run time.
    sizes = tuple(new or old for new, old in zip(grid, mapping.grid, strict=True))
    made = shapes[len(shapes) - len(eqn.outvars) :]
    # Sizes that are known at run time stay as they are.
    share = math.prod(n / o for n, o in zip(grid, mapping.grid, strict=True) if n)
    return {
        **eqn.params,
        "grid_mapping": mapping.replace(grid=sizes, block_mappings=blocks),
        "out_avals": tuple(
            aval.update(shape=shape)
            for aval, shape in zip(eqn.params["out_avals"], made, strict=True)
        ),
        "cost_estimate": stated and _shared_cost(stated, share),
    }


def _shared_cost(stated: Any, share: float) -> Any:
    """A cost estimate of the same form for a share of the work."""
    amounts = {name: int(value * share) for name, value in dataclasses.asdict(stated).items()}
    return dataclasses.replace(stated, **amounts)


_CUDNN = "jax._src.cudnn.fused_attention_stablehlo"  # in 0.10.2 (2026-11)
# Without the CUDA plugin, and with the plugin but not the library.
_NO_CUDNN = ("cuDNN is not detected", "cuDNN not found")


def lacks_cudnn(error: BaseException) -> bool:
    """Whether tracing failed because cuDNN's attention looks for cuDNN and finds none."""
    return isinstance(error, RuntimeError) and str(error).startswith(_NO_CUDNN)


@contextmanager
def cudnn_assumed() -> Iterator[None]:
    """Trace cuDNN's attention where there is no cuDNN: its version, which is asked for while a step
    is traced, is that of the newest features; the calls themselves are the same. There is no public
    way to say it.
    """
    try:
        attention: Any = importlib.import_module(_CUDNN)
        before = attention.cuda_versions
    except (ImportError, AttributeError):
        yield
        return
    if before is not None and _has_cudnn(before):
        yield
        return
    attention.cuda_versions = types.SimpleNamespace(cudnn_get_version=lambda: 99_999)
    try:
        yield
    finally:
        attention.cuda_versions = before


def _has_cudnn(versions: Any) -> bool:
    try:
        versions.cudnn_get_version()
    except RuntimeError as error:
        if lacks_cudnn(error):
            return False
        raise
    return True


def is_unspecified(sharding: Any) -> bool:
    """Whether a nested jit's sharding parameter is the default (a private singleton)."""
    return sharding is None or type(sharding).__name__ == "UnspecifiedValue"


def static_arguments(jitted: Any, args: int) -> tuple[frozenset[int], frozenset[str]] | None:
    """Which of `args` positional arguments, and which by name, a jitted function takes as static.

    None where this JAX does not tell.
    """
    info = getattr(jitted, "_jit_info", None)
    numbers, names = getattr(info, "static_argnums", None), getattr(info, "static_argnames", None)
    if numbers is None or names is None:
        return None
    return frozenset(n % args for n in numbers if -args <= n < args), frozenset(names)


def has_ordered_effects(jaxpr: Any) -> bool:
    """Whether a jaxpr has side effects whose order is part of the program."""
    from jax._src import effects  # no public test for it in 0.10 and 0.12

    return any(effects.ordered_effects.contains(effect) for effect in jaxpr.effects)


def weak_shape(aval: Any) -> jax.ShapeDtypeStruct:
    """The aval as an abstract argument that keeps its weak type (a Python scalar's)."""
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


def shape_in_memory(aval: Any) -> Any:
    """As `weak_shape`, in the memory that the aval is in."""
    if getattr(aval, "memory_space", memory.Space.Device) is memory.Space.Host:
        return aval
    return weak_shape(aval)


def stream_call() -> Callable[[Callable[..., Any], int, int], Callable[..., Any]] | None:
    """(function, stream, scheduling group) -> the function as a call that XLA:GPU runs on a stream
    of its own, started together with the others of its group; None where this JAX has none.

    `jax.experimental.compute_on` names streams too, but gives no group: XLA then waits for each
    call before it starts the next one.
    """
    try:  # in jax 0.10.2 (2026-11)
        from jax.experimental.scheduling_groups import xla_metadata_call
    except ImportError:
        return None

    def call(function: Callable[..., Any], stream: int, group: int) -> Callable[..., Any]:
        attributes = {"_xla_stream_annotation": stream, "_scheduling_group_id": group}
        texts = {name: str(value) for name, value in attributes.items()}
        return xla_metadata_call(function, **texts, inlineable="false")

    return call


def call_attributes(params: Mapping[str, Any]) -> Mapping[str, str]:
    """What `stream_call` said of a call, from the parameters of its equation; empty for others.

    Each is a parameter of its own in jax 0.10 and 0.11; jax 0.12 has them in one (2026-11).
    """
    said = params.get("xla_metadata")
    return dict(params if said is None else said)


def compiled_proto(compiled: jax.stages.Compiled) -> bytes | None:
    """The optimized, partitioned HLO module of a compiled step as a serialized proto.

    None where this JAX, or this compiler, does not give it. The runtime's executable is public,
    what it can do is not; it has the proto of TPU programs whose text XLA cannot print, and what it
    cannot load stands in what it writes (`hlo_tools.compiled.tpu_executable`).
    """
    executable = compiled.runtime_executable()
    read_modules = getattr(executable, "hlo_modules", None)
    serialize = getattr(executable, "serialize", None)
    try:
        # One module for the step; several would be programs of which none is the whole.
        modules = read_modules() if read_modules is not None else ()
        return modules[0].as_serialized_hlo_module_proto() if len(modules) == 1 else None
    except (jax.errors.JaxRuntimeError, AttributeError):
        pass
    try:
        return optimized_module(serialize()) if serialize is not None else None
    except (jax.errors.JaxRuntimeError, AttributeError):
        return None


def lowered_for_gspmd(traced: jax.stages.Traced, platform: str) -> jax.stages.Lowered:
    """Lowered with its shardings as XLA's older partitioner has them, which older compilers read.

    Raises `InputError` where this JAX knows no partitioner but Shardy.
    """
    flag = "jax_use_shardy_partitioner"  # in 0.10.2 and 0.12.0.1 (2026-11); to be removed one day
    before = getattr(jax.config, flag, None)
    if before is None:
        raise InputError(
            f"jax {jax.__version__} writes shardings for Shardy only, which old compilers cannot "
            "read; use jax 0.10.2"
        )
    jax.config.update(flag, False)
    try:
        return traced.lower(lowering_platforms=(platform,))
    finally:
        jax.config.update(flag, before)


class KeyValueStore(Protocol):
    """Texts that all processes of `jax.distributed` can read."""

    def key_value_set(self, key: str, value: str) -> None:
        """Set a key that is not set yet."""

    def key_value_dir_get(self, key: str) -> Sequence[tuple[str, str]]:
        """All keys below one, with their values."""
        ...


def key_value_store() -> KeyValueStore | None:
    """The store of `jax.distributed`, None where it is not initialized, or this JAX has none of
    this form.
    """
    # jax._src.distributed.global_state.client, in 0.10.2 and 0.12.0.1 (2026-11).
    try:
        from jax._src import distributed

        client = distributed.global_state.client
    except (ImportError, AttributeError):
        return None
    has_all = all(hasattr(client, name) for name in ("key_value_set", "key_value_dir_get"))
    return client if has_all else None
