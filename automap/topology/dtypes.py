"""Which arithmetic an HLO element type runs on when a device has none of its own.

`peak_flops_per_s(dtype)` follows this chain until the device lists the type:

    f8e5m2, ... -> f8e4m3fn -> f16 -> bf16 -> f32      u4 -> s4 -> s8 -> bf16      f64 -> f32

A narrow float that the hardware lacks is converted to the next wider type it multiplies (XLA's
float normalization), so fp8 on A100 runs at the f16 rate, f16 on a TPU at the bf16 rate, and bf16
on V100 at the f32 rate. Every device lists f32, so the chain ends.

What a device lists for f32 is the rate of a dot at JAX's *default* precision, because that is what
an unmodified step runs: a single bf16 pass on a TPU, TF32 on A100 and later, plain fp32 on V100.
`jax.default_matmul_precision("highest")` is slower than that (six bf16 passes on a TPU).

Complex numbers are multiplied by their parts. Types that no matrix unit multiplies (wide integers,
pred) count at the f32 rate, an assumption of little weight: such ops are bound by memory.
"""

from typing import Final


DTYPE_FALLBACK: Final[dict[str, str | None]] = {
    "f4e2m1fn": "f8e4m3fn",
    "f8e3m4": "f8e4m3fn",
    "f8e4m3": "f8e4m3fn",
    "f8e4m3b11fnuz": "f8e4m3fn",
    "f8e4m3fnuz": "f8e4m3fn",
    "f8e5m2": "f8e4m3fn",
    "f8e5m2fnuz": "f8e4m3fn",
    "f8e8m0fnu": "f8e4m3fn",
    "f8e4m3fn": "f16",
    "f16": "bf16",
    "bf16": "f32",
    "f64": "f32",
    "s1": "s4",
    "s2": "s4",
    "u1": "s4",
    "u2": "s4",
    "u4": "s4",
    "s4": "s8",
    "u8": "s8",
    "s8": "bf16",
    "s16": "f32",
    "u16": "f32",
    "s32": "f32",
    "u32": "f32",
    "s64": "f32",
    "u64": "f32",
    "pred": "f32",
    "c64": "f32",
    "c128": "f64",
    "f32": None,
}
"""HLO element type -> the type whose rate stands in for it; None ends the chain."""
