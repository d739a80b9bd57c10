"""How a value comes to other devices: the one place that moves data between them.

    devices of one process   `jax.device_put`, which is called in that process alone
    of several               a program of permutations on the devices of both sides -> in: `carry`
    a process's own copy     each process puts what its devices are to have

Every process that holds devices of a plan sends in the same order, so that what must meet does.

No process sees all devices of a transfer between several. Every device that is sent something gets
pieces of its shard, each from a device that holds the piece, and all of them run one program on a
line of the devices that take part. In a round each sends and receives at most one piece:

    pieces      between what both shardings cut; rounds are of one shape         -> in: `_pieces`
    broadcast   of a whole array: who has it sends it on, log2(receivers / holders) rounds
                                                                              -> in: `_broadcast`
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
import numpy as np

from automap.runtime.processes import (
    absent,
    is_key,
    is_own,
    one_device_each,
    process_numbers,
    where_held,
)


_AXIS = "device"
# A program for each kind of array and pair of stages; a step has a few dozen.
_PROGRAMS = 4096

# For each dimension (first, end).
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A box of an array from a device to another one, or to its own new shard."""

    source: Any
    to: Any
    box: Box


@dataclass(frozen=True, slots=True)
class Round:
    """Moves at one time, of boxes of one shape; no device is the source, or the end, of two."""

    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Route:
    """`held` and `wanted` are boxes by device; `passes_on` says that rounds send what came in those
    before.
    """

    devices: tuple[Any, ...]
    rounds: tuple[Round, ...]
    held: Mapping[Any, Box]
    wanted: Mapping[Any, Box]
    passes_on: bool


def plan_route(shape: tuple[int, ...], source: Sharding, to: Sharding) -> Route:
    """The way of an array of a shape, which has at least one dimension."""
    held, wanted = _boxes(shape, source), _boxes(shape, to)
    # Whole on both sides: a tree of copies takes fewer rounds than one sender for all.
    whole = tuple((0, n) for n in shape)
    passes_on = {*held.values(), *wanted.values()} == {whole}
    rounds = _broadcast(held, wanted, whole) if passes_on else _pieces(held, wanted)
    used = {device for each in rounds for m in each.moves for device in (m.source, m.to)}
    devices = tuple(d for d in dict.fromkeys((*held, *wanted)) if d in used or d in wanted)
    return Route(devices, tuple(rounds), held, wanted, passes_on)


def carry(value: jax.Array, to: Sharding) -> jax.Array:
    """The global array with another sharding; every process that holds a device of the route has to
    call it.

    Others may: the result is absent there, as it is in processes that send only.
    """
    if value.ndim == 0:
        # Whole on its devices, so that its sharding is one of vectors too.
        return _scalar(_by_route(_vector(value), to))
    return _by_route(value, to)


def _by_route(value: jax.Array, to: Sharding) -> jax.Array:
    route, run, sharding = _program(value.shape, value.dtype, value.sharding, to)
    here = [d for d in route.devices if d.process_index == jax.process_index()]
    if not here:
        return absent(value, to)
    shards = {s.device: s.data for s in value.addressable_shards}
    # Devices that receive only put zeros into the program, which are overwritten.
    shape = _shard_shape(route.held)
    blocks = [shards[d] if d in shards else jnp.zeros(shape, value.dtype, device=d) for d in here]
    full = (shape[0] * len(route.devices), *shape[1:])
    sent = run(jax.make_array_from_single_device_arrays(full, sharding, blocks))
    arrived = {s.device: s.data for s in sent.addressable_shards}
    mine = [arrived[d] for d in route.wanted if d in arrived]
    return jax.make_array_from_single_device_arrays(value.shape, to, mine, dtype=value.dtype)


@lru_cache(_PROGRAMS)
def _program(
    shape: tuple[int, ...], dtype: Any, source: Sharding, to: Sharding
) -> tuple[Route, Any, NamedSharding]:
    """A route with its program: on blocks of the devices, one after the other along the first
    dimension.
    """
    route = plan_route(shape, source, to)
    number = {device: n for n, device in enumerate(route.devices)}
    rounds = [_tables(route, each, number) for each in route.rounds]
    out_shape = _shard_shape(route.wanted)

    def permute(block: jax.Array) -> jax.Array:
        me = lax.axis_index(_AXIS)
        new = block if route.passes_on else jnp.zeros(out_shape, dtype)
        # One program for all: where a device's piece begins and ends it looks up by its number.
        for pairs, size, starts, ends, receives in rounds:
            first, place, is_for_me = (jnp.asarray(table)[me] for table in (starts, ends, receives))
            piece = lax.dynamic_slice(new if route.passes_on else block, first, size)
            piece = lax.ppermute(piece, _AXIS, pairs)
            new = jnp.where(is_for_me, lax.dynamic_update_slice(new, piece, place), new)
        return new

    mesh = Mesh(np.array(route.devices), (_AXIS,), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(_AXIS)
    run = jax.jit(jax.shard_map(permute, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return route, where_held(run, route.devices), NamedSharding(mesh, spec)


def _tables(route: Route, each: Round, number: Mapping[Any, int]) -> tuple[Any, ...]:
    """A round as (pairs, shape, where each device's piece begins, where it goes, who gets one)."""
    box = each.moves[0].box
    starts = np.zeros((len(number), len(box)), np.int32)
    ends, receives = starts.copy(), np.zeros(len(number), bool)
    for m in each.moves:
        first = np.array([a for a, _ in m.box])
        # What is passed on is whole everywhere.
        source = m.box if route.passes_on else route.held[m.source]
        starts[number[m.source]] = first - [a for a, _ in source]
        ends[number[m.to]] = first - [a for a, _ in route.wanted[m.to]]
        receives[number[m.to]] = True
    pairs = [(number[m.source], number[m.to]) for m in each.moves]
    return pairs, tuple(b - a for a, b in box), starts, ends, receives


def _boxes(shape: tuple[int, ...], sharding: Sharding) -> dict[Any, Box]:
    return {
        device: tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        for device, index in sharding.devices_indices_map(shape).items()
    }


def _shard_shape(boxes: Mapping[Any, Box]) -> tuple[int, ...]:
    return tuple(b - a for a, b in next(iter(boxes.values())))


def _broadcast(held: Mapping[Any, Box], wanted: Mapping[Any, Box], whole: Box) -> list[Round]:
    holders = list(held)
    left = [device for device in wanted if device not in held]
    rounds = []
    while left:
        moves = []
        # Of the same process first: that is the shorter way.
        for source in sorted(holders, key=lambda d: (d.process_index, d.id)):
            if not left:
                break
            near = (n for n, d in enumerate(left) if d.process_index == source.process_index)
            moves.append(Move(source, left.pop(next(near, 0)), whole))
        holders += [m.to for m in moves]
        rounds.append(Round(tuple(moves)))
    return rounds


def _pieces(held: Mapping[Any, Box], wanted: Mapping[Any, Box]) -> list[Round]:
    holders: dict[Box, list[Any]] = {}
    for device, box in held.items():
        holders.setdefault(box, []).append(device)
    sent: Counter[Any] = Counter()
    moves = []
    for to, box in wanted.items():
        for mine, devices in holders.items():
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, mine, strict=True))
            if any(a >= b for a, b in common):
                continue
            # Itself, then one of the same process, then whoever has sent least.
            source = min(
                devices, key=lambda d: (d != to, d.process_index != to.process_index, sent[d])
            )
            sent[source] += 1
            moves.append(Move(source, to, common))
    return _in_rounds(moves)


def _in_rounds(moves: Sequence[Move]) -> list[Round]:
    """Each move in the first round of its shape in which both of its devices are free."""
    rounds: list[tuple[tuple[int, ...], list[Move]]] = []
    for m in moves:
        shape = tuple(b - a for a, b in m.box)
        for size, others in rounds:
            if size == shape and all(m.source != o.source and m.to != o.to for o in others):
                others.append(m)
                break
        else:
            rounds.append((shape, [m]))
    return [Round(tuple(others)) for _, others in rounds]


def _vector(value: jax.Array) -> jax.Array:
    shards = [s.data.reshape(1) for s in value.addressable_shards]
    return jax.make_array_from_single_device_arrays((1,), value.sharding, shards, dtype=value.dtype)


def _scalar(value: jax.Array) -> jax.Array:
    shards = [s.data.reshape(()) for s in value.addressable_shards]
    return jax.make_array_from_single_device_arrays((), value.sharding, shards, dtype=value.dtype)


def send(value: Any, to: NamedSharding, *, donate: bool = False) -> jax.Array:
    """The value with sharding `to`; nothing moves if it has it already.

    `value` is an array of the host or of devices; within one process its memory may be used if it
    is donated. The call returns at once.
    """
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(to, value.ndim):
        return _on_mesh(value, to)
    if jax.process_count() == 1:
        return jax.device_put(value, to, donate=donate)
    if is_key(value):
        # Keys are numbers on their way.
        numbers = send(jax.random.key_data(value), to)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(value))
    if is_own(value):
        return _placed(value, to)
    numbers = process_numbers((*value.sharding.device_set, *to.device_set))
    if jax.process_index() not in numbers:
        return absent(value, to)
    return carry(value, to) if len(numbers) > 1 else jax.device_put(value, to)


def _on_mesh(value: jax.Array, to: NamedSharding) -> jax.Array:
    """A value that lies as `to` says, with the names of its mesh: operands of one operation may not
    have different ones, and programs are compiled once more for an argument without.
    """
    own = value.sharding
    if isinstance(own, NamedSharding) and own.mesh == to.mesh:
        return value
    if jax.process_count() == 1:
        return jax.device_put(value, to)
    if is_key(value):
        numbers = _on_mesh(jax.random.key_data(value), to)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(value))
    shards = [shard.data for shard in value.addressable_shards]
    return jax.make_array_from_single_device_arrays(value.shape, to, shards, dtype=value.dtype)


def fetch(tree: Any) -> Any:
    """The arrays of a tree as numpy's, whole, wherever they are; keys are keys of this process.

    Each array is for a while on a device of every process. All processes that JAX knows have to
    call it, with the same tree; a single process has it of `jax.device_get`.
    """
    if jax.process_count() == 1:
        return jax.device_get(tree)
    whole = one_device_each(jax.devices())
    return jax.tree.map(lambda leaf: _fetched(leaf, whole), tree)


def _fetched(leaf: Any, whole: NamedSharding) -> Any:
    if is_key(leaf):
        numbers = _fetched(jax.random.key_data(leaf), whole)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(leaf))
    return np.asarray(leaf if is_own(leaf) else send(leaf, whole))


def _placed(value: Any, to: NamedSharding) -> jax.Array:
    """A global array of what every process has a copy of."""
    if to.is_fully_addressable:
        return jax.device_put(value, to)
    aval = jax.typeof(value)
    array = value if isinstance(value, jax.Array) else np.asarray(value, aval.dtype)
    places = to.addressable_devices_indices_map(aval.shape)
    shards = [jax.device_put(array[index], device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(aval.shape, to, shards, dtype=aval.dtype)
