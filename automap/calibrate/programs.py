"""The loop that measures a signature: its kernel as JAX writes it."""

from typing import Final

from jax import lax, numpy as jnp

from automap.calibrate.loops import Arrays, Program, poked, shape
from automap.calibrate.streams import stream_program
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    Signature,
    StreamSignature,
)


_DTYPES: Final = {"pred": "bool", "bf16": "bfloat16"}
_LETTERS: Final = {"f": "float", "s": "int", "u": "uint", "c": "complex"}


def jax_dtype(dtype: str) -> str:
    """JAX's name of an HLO element type, as `float32` for `f32`."""
    if dtype in _DTYPES or dtype.startswith("f8") or dtype.startswith("f4"):
        return _DTYPES.get(dtype, f"float{dtype[1]}_{dtype[2:]}")
    return f"{_LETTERS[dtype[0]]}{dtype[1:]}"


def kernel_program(signature: Signature) -> Program:
    """The loop that measures a signature."""
    match signature:
        case DotSignature():
            return _dot(signature)
        case ConvolutionSignature():
            return _convolution(signature)
        case StreamSignature():
            return stream_program(signature)


def _dot(s: DotSignature) -> Program:
    dtype = jax_dtype(s.dtype)
    shapes = ((s.batch, s.m, s.k), (s.batch, s.k, s.n), (s.batch, s.m, s.n))

    def trip(carry: Arrays) -> Arrays:
        left, right, result = carry
        left = poked(left, result)
        return left, right, jnp.matmul(left, right)

    return Program(tuple(shape(*dims, dtype=dtype) for dims in shapes), trip)


def _convolution(s: ConvolutionSignature) -> Program:
    dtype, letters = jax_dtype(s.dtype), "".join(map(str, range(len(s.spatial))))
    shapes = (
        (s.batch, *(d.read for d in s.spatial), s.in_features),
        (*(d.taps for d in s.spatial), s.in_features // s.feature_groups, s.out_features),
        (s.batch // s.batch_groups, *(d.made for d in s.spatial), s.out_features),
    )

    def trip(carry: Arrays) -> Arrays:
        image, kernel, result = carry
        image = poked(image, result)
        made = lax.conv_general_dilated(
            image,
            kernel,
            [d.stride for d in s.spatial],
            [(d.padding_low, d.padding_high) for d in s.spatial],
            lhs_dilation=[d.base_dilation for d in s.spatial],
            rhs_dilation=[d.window_dilation for d in s.spatial],
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=s.feature_groups,
            batch_group_count=s.batch_groups,
        )
        return image, kernel, made

    return Program(tuple(shape(*dims, dtype=dtype) for dims in shapes), trip)
