"""Signatures of a step's kernels under shardings, against XLA's own partition and against the
table's arrays.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.profile import KernelProfile
from automap.cost.profile.measured import MeasuredKernels, Models, factor_parts
from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    Role,
    Spatial,
    StreamSignature,
    element_class,
    matmul_sizes,
)
from automap.cost.tables import build_tables
from automap.topology import get_topology
from hlo_tools.graph import DTYPE_BITS
from tests.steps import decoder, images, mlp, problem_of


def traced_kernels(step, args):
    return build_tables(problem_of(step, args), "cpu").kernels


def function_shapes(function, *dims, dtype="float32"):
    arrays = tuple(jax.ShapeDtypeStruct(d, dtype) for d in dims)
    table = traced_kernels(lambda *arrays: (arrays[0], function(*arrays)), arrays)
    return [shape for shape in table.shape if shape.kind]


def test_the_products_of_an_mlp():
    table = traced_kernels(*mlp(batch=16, width=32, hidden=64))
    signatures = {s.local([1] * len(s.sizes), 0) for s in table.shape if s.kind}
    dot = lambda m, n, k: DotSignature(dtype="f32", batch=1, m=m, n=n, k=k)  # noqa: E731
    forward, backward = [(16, 64, 32), (16, 32, 64)], [(32, 64, 16), (64, 32, 16), (16, 64, 32)]
    sizes = {tuple(sorted((s.m, s.n))) + (s.k,) for s in signatures if isinstance(s, DotSignature)}
    assert sizes == {tuple(sorted((m, n))) + (k,) for m, n, k in (*forward, *backward)}
    assert dot(16, 64, 32) in signatures


def test_batched_products_with_several_dimensions_of_a_role():
    (shape,) = function_shapes(
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (4, 10, 6, 8), (4, 12, 6, 8)
    )
    local = shape.local([1] * len(shape.sizes), 0)
    assert not isinstance(local, StreamSignature)
    assert matmul_sizes(local) == (24, 10, 12, 8)
    heads = shape.sizes.index(6)
    parts = [3 if f == heads else 1 for f in range(len(shape.sizes))]
    assert matmul_sizes(shape.local(parts, 0)) == (8, 10, 12, 8)  # type: ignore[arg-type]


def parts(array):
    """[2 m, 2 n] The real matrix that multiplies as a complex one does."""
    return np.block([[array.real, -array.imag], [array.imag, array.real]])


def test_a_product_of_complex_numbers_is_one_of_their_parts():
    m, n, k = 6, 4, 10
    (shape,) = function_shapes(lambda a, b: a @ b, (m, k), (k, n), dtype="complex64")
    local = shape.local([1] * len(shape.sizes), 0)
    assert isinstance(local, DotSignature) and local.dtype == "f32"

    random = np.random.default_rng(0)
    left, right = (
        random.normal(size=size) + 1j * random.normal(size=size) for size in ((m, k), (k, n))
    )
    # The first columns of the real matrix that the right one is have both parts already.
    stacked = np.concatenate([right.real, right.imag])
    product = parts(left) @ stacked
    assert np.allclose(product[:m] + 1j * product[m:], left @ right)
    assert (local.m, local.n, local.k) == (*product.shape, stacked.shape[0])


def test_what_does_not_divide_is_rounded_up():
    (shape,) = function_shapes(lambda x, w: x @ w, (10, 16), (16, 8))
    parts = [4 if size == 10 else 1 for size in shape.sizes]
    assert shape.local(parts, 0) == DotSignature(dtype="f32", batch=1, m=3, n=8, k=16)


def convolve(x, w, **options):
    return jax.lax.conv_general_dilated(
        x,
        w,
        options.pop("strides", (1, 1)),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        **options,
    )


CONVOLUTIONS = [
    ((8, 16, 16, 4), (3, 3, 4, 8), {}, (1, 8 * 256, 8, 36)),
    ((8, 16, 16, 4), (3, 3, 4, 8), {"strides": (2, 2)}, (1, 8 * 64, 8, 36)),
    ((8, 16, 16, 4), (3, 3, 4, 8), {"rhs_dilation": (2, 2)}, (1, 8 * 256, 8, 36)),
    ((8, 16, 16, 4), (3, 3, 2, 8), {"feature_group_count": 2}, (2, 8 * 256, 4, 18)),
    ((8, 16, 16, 4), (3, 3, 4, 8), {"batch_group_count": 2}, (2, 4 * 256, 4, 36)),
]


@pytest.mark.parametrize(("image", "kernel", "options", "work"), CONVOLUTIONS)
def test_the_work_of_convolutions(image, kernel, options, work):
    (shape,) = function_shapes(lambda x, w: convolve(x, w, **dict(options)), image, kernel)
    signature = shape.local([1] * len(shape.sizes), 0)
    assert isinstance(signature, ConvolutionSignature)
    assert matmul_sizes(signature) == work


@pytest.mark.parametrize(("image", "kernel", "options", "work"), CONVOLUTIONS)
def test_padding_that_is_derived_makes_the_same_convolution(image, kernel, options, work):
    (shape,) = function_shapes(lambda x, w: convolve(x, w, **dict(options)), image, kernel)
    s = shape.local([1] * len(shape.sizes), 0)
    assert isinstance(s, ConvolutionSignature)
    made = jax.eval_shape(
        lambda x, w: jax.lax.conv_general_dilated(
            x,
            w,
            [d.stride for d in s.spatial],
            [(d.padding_low, d.padding_high) for d in s.spatial],
            [d.base_dilation for d in s.spatial],
            [d.window_dilation for d in s.spatial],
            ("NHWC", "HWIO", "NHWC"),
            s.feature_groups,
            s.batch_groups,
        ),
        jax.ShapeDtypeStruct(image, "float32"),
        jax.ShapeDtypeStruct(kernel, "float32"),
    )
    assert made.shape[1:3] == tuple(d.made for d in s.spatial)
    assert made.shape[0] == s.batch // s.batch_groups


def splittable(shape):
    """Factors that a rule lets a mesh axis split: not a small window's taps."""
    if shape.places is None:
        return range(len(shape.sizes))
    places = shape.places
    return (places.batch, places.in_features, places.out_features, places.group, *places.spatial)


@pytest.mark.parametrize("make", [mlp, decoder, images])
def test_the_arrays_of_an_evaluation_hold_the_work_of_the_signatures(make):
    """Every factor of every contraction split by 1, 2 and 4, as two mesh axes do."""
    table = traced_kernels(*make())
    profile = KernelProfile(device="cpu-8", device_kind="cpu", jax_version="0").with_times(
        (shape.local([1] * len(shape.sizes), 0), 1.0) for shape in table.shape if shape.kind
    )
    measured = MeasuredKernels(
        table.shape, table.op_row, Models.fit(profile, get_topology("cpu:8").device)
    )
    rows, (_, kind) = measured._contractions.tolist(), measured._kinds
    assert rows == [i for i, shape in enumerate(table.shape) if shape.kind]
    for row, kernel in enumerate(rows):
        shape = table.shape[kernel]
        for split in product(sorted({-1, *splittable(shape)}), repeat=2):
            local = shape.local(factor_parts(shape, split, (2, 4)), 0)
            assert not isinstance(local, StreamSignature)
            splits = np.full((len(rows), 2), -1)
            splits[row] = split
            assert tuple(measured._local_sizes(kind, splits, (2, 4))[row]) == matmul_sizes(local)


def test_whole_work_is_the_flops_that_are_counted():
    """But for taps on padding, which are not counted there."""
    table = traced_kernels(*decoder())
    for shape, flops in zip(table.shape, table.flops.tolist(), strict=True):
        if shape.kind:
            local = shape.local([1] * len(shape.sizes), 0)
            assert 2 * np.prod(matmul_sizes(local)) == flops  # type: ignore[arg-type]


def test_a_split_kernel_gradient_has_fewer_taps():
    """Its taps are the image, and they are summed over."""
    dims = Spatial(
        read=16, made=3, taps=16, stride=1, padding_low=1, window_dilation=1, base_dilation=1
    )
    table = traced_kernels(*images())
    gradients = [
        s
        for s in table.shape
        if s.convolution and any(d.taps > d.made for d in s.convolution.spatial)
    ]
    assert gradients and dims.padding_high == 1
    for shape in gradients:
        assert shape.places is not None
        factor = next(f for f in shape.places.spatial if f >= 0 and shape.roles[f] is Role.K)
        halved = shape.local([2 if f == factor else 1 for f in range(len(shape.sizes))], 0)
        assert isinstance(halved, ConvolutionSignature) and shape.convolution
        taps = zip(halved.spatial, shape.convolution.spatial, strict=True)
        assert sum(2 * new.taps == old.taps for new, old in taps) == 1


def test_other_kernels_are_known_by_their_bytes():
    shape = KernelShape("", "", "reduce", "wide float")
    signature = shape.local((), 4096)
    assert signature == StreamSignature(family="reduce", elements="wide float", n_bytes=4096)


def test_every_element_type_has_a_class():
    classes = {
        dtype: element_class(dtype) for dtype in DTYPE_BITS if dtype not in ("token", "opaque")
    }
    assert {d for d, c in classes.items() if c == "wide float"} == {"f32", "f64", "c64", "c128"}
    assert {d for d, c in classes.items() if c == "integer"} == {
        d for d in classes if d[0] in "psu"
    }
