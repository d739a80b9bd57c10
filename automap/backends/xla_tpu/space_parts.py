"""Convolutions of few examples, whose images the compiler cuts in parts that it takes for more.

Of fewer than `few_examples` on a device eight parts of the last dimension of space are examples of
their own (XLA's space-to-batch conversion), each with the columns of its neighbours that its
windows reach. Cutting, and bringing those columns to where they are read, copies the image again
and again, and so is what is computed of it element by element:

    extra = few_examples_passes * 2 bytes * numbers of the image / bandwidth
                                                     in tiles, on a device; of each convolution

An image is what a convolution makes, or what a gradient of filters reads. Images of up to eight
columns stay whole, and so, here, do those of windows of one element, which are copied less. It was
asked of chains of one to three convolutions (libtpu 0.0.51).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Final

import numpy as np

from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONVOLUTION


_PARTS: Final = 8
_LANES: Final = 128
_ROUNDED_BYTES: Final = 2


class SpacePartsEffect:
    """Convolutions in one dimension of space or more."""

    n_columns: ClassVar[int] = 7
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = True

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel."""
        graph, none = program.problem.graph, KernelUses({})
        result: list[KernelUses] = []
        for kernel in program.kernels:
            image = _image(graph, graph.ops[kernel.op])
            uses = (
                none if image is None else KernelUses({image[0]: image[1:]}, frozenset(image[:1]))
            )
            result.append(uses)
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "SpaceParts":
        """The images."""
        return SpaceParts(access, *columns)


@dataclass(frozen=True)
class SpaceParts:
    """`access` indexes `KernelTable.traffic_*`, [uses]: an image's numbers, and of its examples,
    its columns and its features the dimension and the size.
    """

    access: np.ndarray
    numbers: np.ndarray
    example_dim: np.ndarray
    examples: np.ndarray
    column_dim: np.ndarray
    columns: np.ndarray
    feature_dim: np.ndarray
    features: np.ndarray

    def select(self, copied: CopiedAccesses) -> "SpaceParts":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the copies of images of few examples."""
        if not len(self.access):
            return
        dims = work.dim_of_axis[work.access_row[self.access]]
        sizes = np.array(work.sizes)

        def parts(dim: np.ndarray) -> np.ndarray:
            return np.where(dims == dim[:, None], sizes, 1).prod(axis=1)

        examples = self.examples / parts(self.example_dim)
        columns = self.columns / parts(self.column_dim)
        features = self.features / parts(self.feature_dim)
        whole = np.where(dims >= 0, sizes, 1).prod(axis=1)
        in_tiles = np.ceil(features / _LANES) * _LANES / features
        n_bytes = (
            self.numbers / whole * in_tiles * _ROUNDED_BYTES * work.numbers.few_examples_passes
        )
        is_cut = (examples < work.numbers.few_examples) & (columns > _PARTS)
        seconds = np.where(is_cut, n_bytes, 0.0) / work.device.memory_bytes_per_s("elementwise")
        np.add.at(work.extra_seconds, work.access_kernel[self.access], seconds)


def _image(graph: Graph, op: Op) -> tuple[int, ...] | None:
    """The image of a convolution, its numbers, and (dimension, size) of its examples, its columns
    and its features.
    """
    at = op.instruction.attributes.conv
    taps = prod(w.size for w in op.instruction.attributes.window)
    if op.opcode != CONVOLUTION or at is None or taps == 1:
        return None
    made = graph.values[op.outputs[0]].dims
    if taps > prod(made[d] for d in at.output_spatial):
        # A gradient of filters sums over examples: they are what its products sum over.
        value, example, feature = op.inputs[0], at.input_feature, at.input_batch
        column = at.input_spatial[-1]
    else:
        value, example, feature = op.outputs[0], at.output_batch, at.output_feature
        column = at.output_spatial[-1]
    dims = graph.values[value].dims
    places = (example, dims[example], column, dims[column], feature, dims[feature])
    return (value, prod(dims), *places) if all(dims) else None
