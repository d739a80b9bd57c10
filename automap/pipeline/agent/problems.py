"""Generated pipeline problems of mixed distributions: what the agent is trained and held out on.

A problem has seconds c, bytes a after each of `FINE` instructions and gradient bytes w, each of a
family of FAMILIES, coarsened to n points by the smallest a in each segment, and

    sum c = 1 s;  sum w over the slowest link takes 10^U(-2.5, 0) s;
    mean a over it 10^U(-3, -0.7) s for a whole batch

With a problem's own chance each: a spike of w at one end (embedding, softmax), a tensor that
crosses all later cuts (encoder and decoder), a parameter shared by both ends, kernels that do not
become faster than a floor, replicas that divide a microbatch's examples, a limit of memory between
what the smallest partition needs and what all of it takes.

Auto-MAP (section 4.5.1, "Data Generation") draws uniform, normal and binomial numbers, and trains
on the first two (section 5.2.4)                                          -> in: `generate_as_paper`
Such data make a straight line of 128 points whose answer is nearly constant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from automap.pipeline.arrays import Arrays, Terms, divisible, from_lines
from automap.pipeline.fabric import Fabric, Transfers, pipeline_fabric
from automap.pipeline.profile.traffic import segment_maximum
from automap.pipeline.schedules import GPIPE, ONE_FORWARD_ONE_BACKWARD, Schedule
from automap.pipeline.solvers.stage_options import least_bytes
from automap.topology import get_topology
from automap.topology.model import Level, Topology


FINE: Final = 512
# NVLink of a V100 server; between servers it is slower by one of the ratios, 48 being 25 Gbit/s, as
# in Auto-MAP's table 2.
_INNER_BYTES_PER_S: Final = 150e9
_RATIOS: Final = (2.0, 6.0, 20.0, 48.0)
_MICROBATCHES: Final = (2, 4, 8, 12, 16, 16, 32, 64)
TRAINED_SCHEDULES: Final[tuple[Schedule, ...]] = (GPIPE, ONE_FORWARD_ONE_BACKWARD)


@dataclass(frozen=True)
class Problem:
    """A problem, its links, and the number of stages S that it asks for."""

    arrays: Arrays
    fabric: Fabric
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a problem is: S stages, n points, and servers with devices each."""

    stages: int
    points: int
    servers: int
    per_server: int


def _uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.random(n)


def _normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(rng.normal(0.5, 0.2, n), 0.0, 1.0)


def _binomial(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.binomial(10, 0.1, n) / 10.0


def _log_normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(rng.normal(0.0, 1.5, n))


def _blocks(rng: np.random.Generator, n: int) -> np.ndarray:
    period, phase = rng.integers(8, 64), rng.integers(0, 64)
    heavy = (np.arange(n) + phase) % period < period // 4
    return np.where(heavy, 1.0, 0.05) * rng.uniform(0.7, 1.3, n)


def _trend(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(rng.uniform(-3.0, 3.0) * np.linspace(0.0, 1.0, n)) * rng.uniform(0.5, 1.5, n)


FAMILIES: Final[dict[str, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "uniform": _uniform,
    "normal": _normal,
    "binomial": _binomial,
    "log-normal": _log_normal,
    "blocks": _blocks,
    "trend": _trend,
}
"""By name: positive numbers [n] of instructions."""


def generate(seed: int, size: Size) -> Problem:
    """The problem of a seed: same seed and size, same problem. Some partition in S stages fits."""
    # The order of draws is part of what a seed means: weights were trained on these problems.
    rng = np.random.default_rng([seed, size.stages, size.points, size.servers, size.per_server])
    sharing = size.per_server if rng.random() < 0.5 else 1
    transfers = "matched" if rng.random() < 0.7 else "adjacent"
    ratio = float(rng.choice(_RATIOS))
    fabric = _fabric(size.servers, size.per_server, ratio, sharing, transfers)
    terms = Terms(
        microbatches=int(rng.choice(_MICROBATCHES)),
        schedule=TRAINED_SCHEDULES[int(rng.integers(len(TRAINED_SCHEDULES)))],
        memory_limit_bytes=np.inf,
    )
    seconds, cut_bytes, gradient_bytes = _lines(rng, size.points, _INNER_BYTES_PER_S / ratio)
    arrays = from_lines(seconds, cut_bytes, gradient_bytes, fabric, terms)
    if rng.random() < 0.2:
        arrays = _with_shared_parameter(rng, arrays)
    if rng.random() < 0.5:
        arrays = _with_floors(rng, arrays, seconds)
    if rng.random() < 0.3:
        arrays = _with_examples(rng, arrays, size.stages)
    arrays = _with_memory(rng, arrays, size.stages)
    return Problem(arrays, fabric, size.stages)


def generate_plain(seed: int, size: Size) -> Problem:
    """The lines of a seed in Auto-MAP's own setting: GPipe, 16 microbatches, no floors, no limit of
    memory.
    """
    rng = np.random.default_rng([seed, size.stages, size.points, size.servers, size.per_server])
    ratio = _RATIOS[-1]
    fabric = _fabric(size.servers, size.per_server, ratio, size.per_server, "adjacent")
    terms = Terms(microbatches=16, schedule=GPIPE, memory_limit_bytes=np.inf)
    lines = _lines(rng, size.points, _INNER_BYTES_PER_S / ratio)
    return Problem(from_lines(*lines, fabric, terms), fabric, size.stages)


def generate_as_paper(seed: int, size: Size) -> Problem:
    """The problem of a seed as Auto-MAP trains on: as `generate_plain`, of uniform and normal
    numbers only, each of its links between servers' ratios as likely.
    """
    rng = np.random.default_rng([seed, size.stages, size.points, size.servers, size.per_server])
    ratio = float(rng.choice(_RATIOS))
    fabric = _fabric(size.servers, size.per_server, ratio, size.per_server, "adjacent")
    terms = Terms(microbatches=16, schedule=GPIPE, memory_limit_bytes=np.inf)
    c, a, w = ((_uniform, _normal)[rng.integers(2)](rng, FINE) + 1e-6 for _ in range(3))
    lines = _coarsened(rng, c, a, w, size.points, _INNER_BYTES_PER_S / ratio)
    return Problem(from_lines(*lines, fabric, terms), fabric, size.stages)


@lru_cache(maxsize=256)
def _fabric(
    servers: int, per_server: int, ratio: float, sharing: int, transfers: Transfers
) -> Fabric:
    model = get_topology("4x8xv100")
    inner, outer = model.levels
    levels: list[Level] = []
    if per_server > 1:
        levels.append(_level(inner, per_server, _INNER_BYTES_PER_S, 1))
    if servers > 1:
        levels.append(_level(outer, servers, _INNER_BYTES_PER_S / ratio, sharing))
    topology = Topology(
        name="generated", platform="cuda", device=model.device, levels=tuple(levels)
    )
    return pipeline_fabric(topology, transfers)


def _level(like: Level, size: int, bytes_per_s: float, shared_by: int) -> Level:
    return Level(
        name=like.name,
        size=size,
        kind="switch",
        bytes_per_s=bytes_per_s,
        latency_seconds=like.latency_seconds,
        shared_by=shared_by,
        reach=like.reach,
        source=like.source,
    )


def _lines(
    rng: np.random.Generator, points: int, bytes_per_s: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(c, a, w) of points."""
    # c, a and w are alike as often as not: in a real model all follow its layers.
    names = list(FAMILIES)
    common = rng.choice(names)
    c, a, w = (
        FAMILIES[common if rng.random() < 0.5 else rng.choice(names)](rng, FINE) + 1e-6
        for _ in range(3)
    )
    # An embedding or a softmax: most of the parameters near one end.
    if rng.random() < 0.35:
        place = int(rng.integers(0, 8))
        w[place if rng.random() < 0.5 else FINE - 1 - place] += w.sum() * rng.uniform(0.1, 1.0)
    # What the encoder made is sent on by every later stage, up to the decoder that reads it.
    if rng.random() < 0.15:
        a[int(FINE * rng.uniform(0.3, 0.6)) :] += a.mean() * rng.uniform(0.5, 3.0)
    return _coarsened(rng, c, a, w, points, bytes_per_s)


def _coarsened(
    rng: np.random.Generator,
    c: np.ndarray,
    a: np.ndarray,
    w: np.ndarray,
    points: int,
    bytes_per_s: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(c, a, w) of points, from those of instructions, in the amounts of the first lines."""
    ends = [int(s[a[s].argmin()]) for s in np.array_split(np.arange(FINE - 1), points - 1)]
    first = np.array([0, *(end + 1 for end in ends)])
    c, w = (np.add.reduceat(line, first) for line in (c, w))
    a = np.append(a[ends], 0.0)
    return (
        c / c.sum(),
        a / a.mean() * 10 ** rng.uniform(-3.0, -0.7) * bytes_per_s,
        w / w.sum() * 10 ** rng.uniform(-2.5, 0.0) * bytes_per_s,
    )


def _with_shared_parameter(rng: np.random.Generator, arrays: Arrays) -> Arrays:
    """A parameter that the first and the last point use: once in a stage that has either."""
    n = arrays.n_points
    size = arrays.gradient_bytes[0, n] * rng.uniform(0.02, 0.4)
    i, j = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    uses = (i < j) & ((i == 0) | (j == n))
    return arrays._replace(gradient_bytes=arrays.gradient_bytes + size * uses)


def _with_floors(rng: np.random.Generator, arrays: Arrays, seconds: np.ndarray) -> Arrays:
    """No point is faster than a floor, however few examples it is for."""
    m, n = arrays.microbatches, arrays.n_points
    floor = rng.uniform(0.0, 1.5) * seconds.mean() / (m * arrays.n_units)
    floors = floor * rng.uniform(0.2, 1.8, n)
    tables = []
    for line, share in ((arrays.forward, 1 / 3), (arrays.backward, 2 / 3)):
        steps = np.maximum(np.diff(line, axis=1), share * floors)
        # Sizes that no stage may have stay all 0, as `pipeline_arrays` leaves them.
        steps[~arrays.usable] = 0.0
        tables.append(np.concatenate([np.zeros((len(line), 1)), steps.cumsum(1)], axis=1))
    return arrays._replace(forward=tables[0], backward=tables[1])


def _with_examples(rng: np.random.Generator, arrays: Arrays, stages: int) -> Arrays:
    """Replicas must divide the examples of a microbatch."""
    examples = int(rng.choice([16, 24, 32, 48, 64]))
    sizes = np.arange(arrays.n_units + 1)
    usable = (sizes > 0) & (examples % np.maximum(sizes, 1) == 0)
    limited = arrays._replace(usable=usable)
    # Units that such sizes do not add up to in S stages would leave no partition at all.
    return limited if divisible(limited, stages)[stages, arrays.n_units] else arrays


def _with_memory(rng: np.random.Generator, arrays: Arrays, stages: int) -> Arrays:
    """State of 3 to 8 times the gradients; activations saved for the backward pass of the order of
    the cuts' bytes.
    """
    n, m = arrays.n_points, arrays.microbatches
    saved = np.concatenate([[0.0], np.cumsum(rng.uniform(0.5, 1.5, n))])
    saved *= arrays.gradient_bytes[0, n] * rng.uniform(0.1, 6.0) / (saved[-1] * m)
    between = np.maximum(saved[None, :] - saved[:, None], 0.0)
    arrays = arrays._replace(
        state_bytes=arrays.gradient_bytes * rng.uniform(3.0, 8.0),
        saved_bytes=between,
        working_bytes=segment_maximum(rng.uniform(0.0, 2.0, n) * saved[-1] / n),
    )
    if rng.random() < 0.6:
        return arrays
    # From 1 % to 200 % above what the smallest partition needs: some partition always fits.
    least = least_bytes(arrays, stages)
    return arrays._replace(memory_limit_bytes=float(least * (1.0 + 10 ** rng.uniform(-2.0, 0.3))))
