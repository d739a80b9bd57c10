"""Kernels of Pallas: rules that follow from their calls, and parts of them that equal the whole."""

from functools import partial

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.jax_compat import rebuild_jaxpr
from automap.jaxpr.flatten import equations, flatten
from automap.jaxpr.grid_tables import GridFactor
from automap.jaxpr.kernels import kernel_per_device, stand_in
from automap.jaxpr.pallas import Kernel, is_kernel, read_kernel


F32 = jnp.float32
call = partial(pl.pallas_call, interpret=True)


def _double(x, y):
    y[...] = x[...] * 2


def _with(block, index_map):
    return pl.BlockSpec(block, index_map)


def rows(x):
    spec = _with((2, 128), lambda i: (i, 0))
    return call(_double, out_shape=x, grid=(8,), in_specs=[spec], out_specs=spec)(x)


def reversed_rows(x):
    spec, back = _with((2, 128), lambda i: (i, 0)), _with((2, 128), lambda i: (7 - i, 0))
    return call(_double, out_shape=x, grid=(8,), in_specs=[back], out_specs=spec)(x)


def rows_and_a_rest(x):
    spec = _with((3, 128), lambda i: (i, 0))
    return call(_double, out_shape=x, grid=(6,), in_specs=[spec], out_specs=spec)(x)


def fused_rows(x):
    """One axis of the grid for two dimensions, and one dimension for two axes."""
    given = _with((None, None, 8), lambda i, j: (i // 4, i % 4 * 2 + j, 0))
    made = _with((None, 8), lambda i, j: (i * 2 + j, 0))
    out = jax.ShapeDtypeStruct((16, 8), F32)
    return call(_double, out_shape=out, grid=(8, 2), in_specs=[given], out_specs=made)(
        x.reshape(2, 8, 8)
    )


def minor_first(x):
    """The minor digit of the grid's axis is the major dimension of both arrays."""
    spec = _with((None, None, 8), lambda i: (i % 8, i // 8, 0))
    x = x.reshape(8, 2, 8)
    return call(_double, out_shape=x, grid=(16,), in_specs=[spec], out_specs=spec)(x)


def _scores(q, k, o):
    o[...] = jnp.dot(q[...], k[...].T)


def grouped_heads(q, k):
    """Eight query heads, four of them with each of two key heads."""
    return call(
        _scores,
        out_shape=jax.ShapeDtypeStruct((2, 8, 16, 16), F32),
        grid=(2, 8),
        in_specs=[
            _with((None, None, 16, 8), lambda b, h: (b, h, 0, 0)),
            _with((None, None, 16, 8), lambda b, h: (b, h // 4, 0, 0)),
        ],
        out_specs=_with((None, None, 16, 16), lambda b, h: (b, h, 0, 0)),
    )(q, k)


def _accumulate(x, y, o, total):
    @pl.when(pl.program_id(2) == 0)
    def _():
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(x[...], y[...])
    o[...] = total[...]


def product(x, y):
    return call(
        _accumulate,
        out_shape=jax.ShapeDtypeStruct((16, 32), F32),
        grid=(4, 2, 2),
        in_specs=[
            _with((4, 8), lambda m, n, k: (m, k)),
            _with((8, 16), lambda m, n, k: (k, n)),
        ],
        out_specs=_with((4, 16), lambda m, n, k: (m, n)),
        scratch_shapes=[pltpu.VMEM((4, 16), F32)],
    )(x, y)


def sums_outside(x):
    """Scratch memory that is started where the outer axis begins: the inner one may go on in it."""

    def body(x, o, total):
        @pl.when(pl.program_id(0) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x[...]
        o[...] = total[...]

    spec = _with((2, 128), lambda k, i: (k * 4 + i, 0))
    return call(
        body,
        out_shape=x,
        grid=(2, 4),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((2, 128), F32)],
    )(x)


def sums_inside(x):
    """The body reads the outer axis, but starts its scratch memory anew within each inner one."""

    def body(x, o, total):
        @pl.when(pl.program_id(2) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x[...] * pl.program_id(0)
        o[...] = total[...]

    spec = _with((2, 64), lambda k, i, j: (k * 4 + i, j))
    return call(
        body,
        out_shape=x,
        grid=(2, 4, 2),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((2, 64), F32)],
    )(x)


def works_in_a_result(x):
    """A result that nobody reads is memory to work in, which each program writes first."""

    def body(x, work, y):
        work[...] = x[...] * 2
        y[...] = work[...] + 1

    spec, whole = _with((2, 128), lambda i: (i, 0)), _with((2, 128), lambda i: (0, 0))
    out = [jax.ShapeDtypeStruct((2, 128), F32), x]
    return call(body, out_shape=out, grid=(8,), in_specs=[spec], out_specs=[whole, spec])(x)[1]


def numbered_rows(x):
    def body(x, y):
        y[...] = x[...] + pl.program_id(0)

    spec = _with((2, 128), lambda i: (i, 0))
    return call(body, out_shape=x, grid=(8,), in_specs=[spec], out_specs=spec)(x)


def numbered_in_groups(x):
    """The body reads which of its group a program is, not which group."""

    def body(x, y):
        y[...] = x[...] + pl.program_id(0) % 2

    spec = _with((None, None, 8), lambda i: (i // 2, i % 2, 0))
    x = x.reshape(8, 2, 8)
    return call(body, out_shape=x, grid=(16,), in_specs=[spec], out_specs=spec)(x)


def looked_up(rows, x):
    return call(
        lambda rows, x, y: _double(x, y),
        out_shape=jax.ShapeDtypeStruct((8, 256), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(8, 2),
            in_specs=[_with((1, 128), lambda i, j, rows: (rows[i], j))],
            out_specs=_with((1, 128), lambda i, j, rows: (i, j)),
        ),
    )(rows, x)


def mapped(x):
    return jax.vmap(rows)(x.reshape(4, 16, 128))


def in_place(x, y):
    spec = _with((2, 128), lambda i: (i, 0))
    return call(
        lambda x, y, z: _double(x, z),
        out_shape=x,
        grid=(8,),
        in_specs=[spec, spec],
        out_specs=spec,
        input_output_aliases={1: 0},
    )(x, y)


def _arrays(*shapes):
    random = np.random.default_rng(0)
    return tuple(jnp.asarray(random.normal(size=shape), F32) for shape in shapes)


WIDE = _arrays((16, 128))
# Kernel -> arguments, its rule, and why the rest of the grid is no batch.
KERNELS = {
    rows: (WIDE, "(ab)c->(ad)e replicate=b,c,d,e", ""),
    rows_and_a_rest: (WIDE, "ab->cd replicate=a,b,c,d", "operand 0 does not hand it on"),
    reversed_rows: (WIDE, "ab->cd replicate=a,b,c,d", "operand 0 does not hand it on"),
    fused_rows: (_arrays((16, 8)), "a(bc)d->(abc)e replicate=d,e", ""),
    minor_first: (_arrays((16, 8)), "abc->abd replicate=c,d", ""),
    grouped_heads: (
        _arrays((2, 8, 16, 8), (2, 2, 16, 8)),
        "a(bc)de,abfg->a(bc)hi replicate=d,e,f,g,h,i",
        "",
    ),
    product: (
        _arrays((16, 16), (16, 32)),
        "(ab)c,d(ef)->(ag)(eh) replicate=b,c,d,f,g,h",
        "axis 2 of its grid (4, 2, 2): result 0 has it on 0 dimensions",
    ),
    sums_outside: (WIDE, "ab->cd replicate=a,b,c,d", "scratch memory along it"),
    sums_inside: (WIDE, "(abc)d->(ebf)g replicate=a,c,d,e,f,g", "the body reads its program_id"),
    works_in_a_result: (WIDE, "(ab)c->de,(af)g replicate=b,c,d,e,f,g", ""),
    numbered_rows: (WIDE, "ab->cd replicate=a,b,c,d", "the body reads its program_id"),
    numbered_in_groups: (
        _arrays((16, 8)),
        "abc->ade replicate=b,c,d,e",
        "the body reads its program_id",
    ),
    looked_up: (
        (jnp.array([3, 1, 0, 2, 2, 1, 0, 3]), *_arrays((4, 256))),
        "a,b(cd)->e(cf) replicate=a,b,d,e,f",
        "the index map of operand 1 does not hand it on",
    ),
    mapped: (_arrays((64, 128)), "a(bc)d->a(be)f replicate=c,d,e,f", ""),
    in_place: ((*WIDE, *WIDE), "(ab)c,(ad)e->(af)g replicate=b,c,d,e,f,g", ""),
}


def _equation(kernel, arguments):
    """A jaxpr that has a kernel as its one equation, with its operands and results."""
    jaxpr = jax.make_jaxpr(kernel)(*arguments)
    (eqn,) = [e.eqn for e in equations(flatten(jaxpr, {})) if is_kernel(e.eqn)]
    return jaxpr, eqn


def _kernel(eqn) -> Kernel:
    kernel = read_kernel(eqn)
    assert kernel is not None
    return kernel


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_rule(kernel):
    arguments, rule, reason = KERNELS[kernel]
    _, eqn = _equation(kernel, arguments)
    assert str(stand_in(eqn, {}).rule) == rule
    reasons = _kernel(eqn).reasons
    assert any(reason in each for each in reasons) if reason else reasons == ()


def _splits(eqn):
    """Each way to split one dimension of the last result along a batch, over up to 8 devices."""
    kernel = _kernel(eqn)
    for dim, factors in enumerate(kernel.results[-1].dims):
        for parts in (2, 4, 8):
            if factors and factors[0] in kernel.batches and factors[0].size % parts == 0:
                yield dim, parts


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_parts_are_the_whole(kernel):
    arguments, _, _ = KERNELS[kernel]
    holder, eqn = _equation(kernel, arguments)
    values = [
        jnp.asarray(np.random.default_rng(1).normal(size=atom.aval.shape) * 0.9, atom.aval.dtype)
        for atom in eqn.invars
    ]
    number = len(eqn.outvars) - 1
    want = eqn.primitive.bind(*values, **eqn.params)[number]
    for dim, parts in [*_splits(eqn), (0, 1)]:
        types = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((parts,), ("x",), types, devices=jax.devices()[:parts])
        split = tuple(("x",) if d == dim else () for d in range(want.ndim))
        local = kernel_per_device(eqn, mesh, [*[None] * number, split])
        part = local.params["jaxpr"].eqns[0].outvars[number].aval.shape
        assert part[dim] * parts == want.shape[dim]
        made = rebuild_jaxpr(holder, [], [], local.outvars[number:], [local], local.invars)
        (got,) = jax.jit(jaxpr_as_fun(made))(*values)
        assert got.addressable_shards[0].data.shape == part
        np.testing.assert_array_equal(got, want)


def test_products_are_counted_as_programs_take_them():
    """Half of a causal kernel's blocks are skipped, and a loop runs as long as it counts."""

    def body(q, k, o):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j <= i)
        def _():
            def once(_, total):
                return total + jnp.dot(q[...], k[...].T)

            o[...] = jax.lax.fori_loop(0, i + 1, once, jnp.zeros((8, 8)))

    def kernel(q, k):
        return call(
            body,
            out_shape=jax.ShapeDtypeStruct((32, 32), F32),
            grid=(4, 4),
            in_specs=[_with((8, 16), lambda i, j: (i, 0)), _with((8, 16), lambda i, j: (j, 0))],
            out_specs=_with((8, 8), lambda i, j: (i, j)),
        )(q, k)

    _, eqn = _equation(kernel, _arrays((32, 16), (32, 16)))
    # Row i has i + 1 blocks, each with i + 1 trips.
    assert _kernel(eqn).flops == 2 * 8 * 8 * 16 * (1 + 4 + 9 + 16)


def test_digits_of_an_axis():
    kernel = _kernel(_equation(fused_rows, KERNELS[fused_rows][0])[1])
    assert kernel.batches == (GridFactor(0, 4, 2), GridFactor(0, 1, 4), GridFactor(1, 1, 2))


def test_kernels_without_a_name_are_called_after_their_lines():
    def step(x):
        first = call(lambda x, y: _double(x, y), out_shape=x)(x)
        return call(lambda x, y: _double(x, y), out_shape=x)(first)

    flat = flatten(jax.make_jaxpr(step)(jax.ShapeDtypeStruct((8, 128), F32)), {})
    eqns = [equation.eqn for equation in equations(flat) if is_kernel(equation.eqn)]
    names = [stand_in(eqn, {}).name for eqn in eqns]
    line = step.__code__.co_firstlineno
    assert names == [f"test_pallas.py:{line + 1}", f"test_pallas.py:{line + 2}"]


def test_kernels_are_seen_inside_of_rules_for_vmap_and_rematerialization():
    @jax.custom_batching.custom_vmap
    def double(x):
        return rows(x)

    double.def_vmap(lambda _, batched, x: (jax.vmap(rows)(x), *batched))

    @jax.custom_vjp
    def layer(x):
        return double(x)

    layer.defvjp(lambda x: (double(x), None), lambda _, dy: (double(dy),), optimize_remat=True)
    x = jnp.arange(16 * 128, dtype=F32).reshape(16, 128)
    gradient = jax.grad(lambda x: (layer(x) ** 2).sum())
    flat = flatten(jax.make_jaxpr(gradient)(x), {})
    assert sum(is_kernel(equation.eqn) for equation in equations(flat)) == 2
    plan = automap.plan(gradient, (x,), topology="cpu:8", mesh={"data": 8}, strategy="greedy")
    np.testing.assert_array_equal(plan.jit(gradient)(x), 8 * x)
