"""Products, and what is computed and summed of their results in the same kernel: steps of
`scripts.compare_tpu_kernels`, of which each has one kernel on a TPU; and products whose operands
and results are on its chip, between two other kernels.
"""

from collections.abc import Callable, Iterator
from typing import Any

from jax import Array, lax, numpy as jnp

from scripts.kernel_cases import BF, F32, KernelCase, adam, kernel_case


def made() -> Iterator[KernelCase]:
    """m x k x n; of m x n numbers others are given, too."""
    for dtype in (F32, BF):
        for m, k, n in (
            (4096, 256, 4096),
            (4096, 1024, 4096),
            (4096, 4096, 4096),
            (8192, 2048, 512),
        ):
            given, whole = (((m, k), dtype), ((k, n), dtype)), ((m, n), dtype)
            sizes = f"{m} x {k} x {n} {jnp.dtype(dtype).name}"
            yield kernel_case("product", sizes, lambda a, b: a @ b, *given)
            yield kernel_case("product, tanh", sizes, lambda a, b: jnp.tanh(a @ b), *given)
            yield kernel_case(
                "product, times another", sizes, lambda a, b, c: (a @ b) * c, *given, whole
            )
            turned = ((n, m), dtype)
            yield kernel_case(
                "product, turned", sizes, lambda a, b, c: (a @ b).T * c, *given, turned
            )
            yield kernel_case("product, two results", sizes, _two_of_product, *given, whole)
            yield kernel_case(
                "product, summed", sizes, lambda a, b, c: ((a @ b) * c).sum(0), *given, whole
            )
            yield kernel_case("product, Adam", sizes, _adam_of_product, *given, whole, whole, whole)
            yield kernel_case("product on the chip", sizes, _on_chip, *given)
    # As layers of small models have them.
    for dtype in (F32, BF):
        for m, k, n in ((512, 512, 512), (1024, 256, 1024), (8192, 128, 128), (2048, 64, 192)):
            sizes = f"{m} x {k} x {n} {jnp.dtype(dtype).name}"
            given = ((m, k), dtype), ((k, n), dtype)
            yield kernel_case("product on the chip", sizes, _on_chip, *given)
    # Four queries read one key; the scores are put in another order of dimensions.
    for order in ("bgnqk", "bgqnk"):
        queries, keys = ((2, 1024, 4, 4, 64), BF), ((2, 1024, 4, 64), BF)
        yield kernel_case(
            "scores of grouped queries, summed", order, _grouped(order), queries, keys
        )


def _on_chip(a: Array, b: Array) -> Array:
    """A product between two other kernels."""
    a, b = lax.optimization_barrier((a * 2, b * 3))
    return lax.optimization_barrier(a @ b) * 2


def _two_of_product(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    product = a @ b
    return product * c, product + c


def _adam_of_product(a: Array, b: Array, p: Array, m: Array, v: Array) -> Any:
    return adam(p, m, v, a @ b)


def _grouped(order: str) -> Callable[[Array, Array], Array]:
    def sums(q: Array, k: Array) -> Array:
        scores = jnp.einsum(f"bqgnc,bkgc->{order}", q, k).astype(F32)
        return jnp.exp(scores - scores.max(-1, keepdims=True)).sum(-1)

    return sums
