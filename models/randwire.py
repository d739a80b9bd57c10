"""RandWire: randomly wired image classifiers, as inference steps (Xie et al. 2019).

A graph of Watts and Strogatz: N nodes on a ring, each joined to its K / 2 neighbours on each side,
each edge moved with probability P to another end. An edge goes from the lower to the higher node.
A node sums its inputs, weighted by sigmoids of learned numbers, and is a separable convolution;
nodes without inputs read the stage's input with stride 2, the stage's result is the mean of the
nodes that nobody reads. The regular regime of the paper: a stem, and four such stages of N / 2, N,
N and N nodes with C, 2C, 4C and 8C channels, all from one seed.
"""

from dataclasses import dataclass

from flax import nnx
import jax
from jax import numpy as jnp
import numpy as np

from models.inference import InferenceStep, Target, inference_step
from models.separable import PointwiseConv, SeparableConv
from models.training import DType, check_size


RGB = 3
Edges = tuple[tuple[int, ...], ...]
"""For each node the nodes that it reads, all lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandWireConfig:
    """Sizes of a RandWire: `nodes` of each stage, C `channels`, K `neighbours`, P `moved`."""

    image: int
    nodes: tuple[int, ...]
    channels: int
    neighbours: int = 4
    moved: float = 0.75
    seed: int = 0
    classes: int = 1000
    last: int = 1280


RANDWIRE = RandWireConfig(image=224, nodes=(16, 32, 32, 32), channels=154)
TINY = RandWireConfig(image=32, nodes=(5, 6), channels=8, classes=16, last=32)


def watts_strogatz(nodes: int, neighbours: int, moved: float, rng: np.random.Generator) -> Edges:
    """The nodes that each node reads, of a ring some of whose edges are moved."""
    edges = {
        frozenset((node, (node + distance) % nodes))
        for distance in range(1, neighbours // 2 + 1)
        for node in range(nodes)
    }
    for distance in range(1, neighbours // 2 + 1):
        for node in range(nodes):
            old = frozenset((node, (node + distance) % nodes))
            free = [n for n in range(nodes) if n != node and frozenset((node, n)) not in edges]
            if rng.random() < moved and free and old in edges:
                edges.remove(old)
                edges.add(frozenset((node, int(rng.choice(free)))))
    pairs = [(min(edge), max(edge)) for edge in edges if len(edge) == 2]
    return tuple(tuple(sorted(a for a, b in pairs if b == node)) for node in range(nodes))


class Stage(nnx.Module):
    """One random graph."""

    def __init__(self, c_in: int, channels: int, edges: Edges, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.edges = edges
        self.nodes = nnx.List(
            SeparableConv(channels if reads else c_in, channels, 3, 1 if reads else 2, rngs=rngs)
            for reads in edges
        )
        self.weights = nnx.List(nnx.Param(jnp.zeros(len(reads))) for reads in edges if reads)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, channels in] -> [B, H / 2, W / 2, channels]."""
        made: list[jax.Array] = []
        weights = iter(self.weights)
        for reads, node in zip(self.edges, self.nodes, strict=True):
            if reads:
                share = jax.nn.sigmoid(next(weights)[...])
                given = sum(share[i] * made[n] for i, n in enumerate(reads))
            else:
                given = x
            made.append(node(given))
        read = {n for reads in self.edges for n in reads}
        ends = [made[n] for n in range(len(made)) if n not in read]
        return sum(ends) / len(ends)


class RandWire(nnx.Module):
    """A stem, random graphs and a classifier."""

    def __init__(self, config: RandWireConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`; the wiring is drawn from the configuration's seed."""
        draw = np.random.default_rng(config.seed)
        self.stem = nnx.Conv(
            RGB, config.channels // 2, (3, 3), strides=2, use_bias=False, rngs=rngs
        )
        self.norm = nnx.BatchNorm(config.channels // 2, momentum=0.9, epsilon=1e-3, rngs=rngs)
        channels, stages = config.channels // 2, []
        for number, nodes in enumerate(config.nodes):
            edges = watts_strogatz(nodes, config.neighbours, config.moved, draw)
            wider = config.channels * 2**number
            stages.append(Stage(channels, wider, edges, rngs=rngs))
            channels = wider
        self.stages = nnx.List(stages)
        self.last = PointwiseConv(channels, config.last, rngs=rngs)
        self.classifier = nnx.Linear(config.last, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [B, classes] of images [B, H, W, RGB]."""
        x = self.norm(self.stem(images))
        for stage in self.stages:
            x = stage(x)
        return self.classifier(jax.nn.relu(self.last(x)).mean(axis=(1, 2)))


def randwire_step(config: RandWireConfig, *, batch: int, dtype: DType = "float32") -> InferenceStep:
    """The inference step of a configuration on `batch` square images.

    Raises:
        InputError: a batch that is not possible, or an unknown `dtype`.
    """
    check_size("batch", batch)
    shapes = {"images": ((batch, config.image, config.image, RGB), "float32")}
    return inference_step(
        lambda rngs: RandWire(config, rngs=rngs),
        lambda model, given: model(given["images"]),
        shapes,
        dtype=dtype,
    )


def randwire(batch: int = 1, dtype: DType = "float32") -> Target:
    """RandWire of the regular regime, C = 154, on ImageNet."""
    return randwire_step(RANDWIRE, batch=batch, dtype=dtype).target


def randwire_small(batch: int = 2, dtype: DType = "float32") -> Target:
    """Two small random graphs on 32x32 images, for tests."""
    return randwire_step(TINY, batch=batch, dtype=dtype).target
