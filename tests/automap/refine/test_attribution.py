"""Kernels of compiled programs written by hand, told apart by their sites; prices by hand."""

import pytest

from automap.config import Options
from automap.cost.profile import KernelPrices
from automap.cost.profile.prices import CompiledDot
from automap.cost.profile.signatures import DotSignature
from automap.cost.shardings import shardings
from automap.jaxpr.sites import scope_name
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.refine.attribution import (
    CompiledSeconds,
    LearnedPrices,
    compiled_seconds,
    learned_prices,
    mean_prices,
)
from automap.topology import get_topology
from automap.verify.kernel_seconds import CLOCK_HZ
from hlo_tools.jax_compat import text_to_proto
from tests.steps import mlp


V5E = get_topology("v5e:2x4")


def _config(cycles):
    return f'{{"window_config":{{"estimated_cycles":"{cycles}"}}}}'


def _fusion(name, sites):
    """A computation with a product for each site."""
    dots = "\n".join(
        f"  %{name}.{i} = f32[8,8] dot(%{name}.p, %{name}.p), lhs_contracting_dims={{1}}, "
        f'rhs_contracting_dims={{0}}, metadata={{op_name="jit(f)/{scope_name(site)}/dot_general"}}'
        for i, site in enumerate(sites)
    )
    last = f"%{name}.{len(sites) - 1}" if sites else f"%{name}.p"
    return (
        f"%{name} ({name}.p: f32[8,8]) -> f32[8,8] {{\n  %{name}.p = f32[8,8] parameter(0)\n{dots}"
        f"\n  ROOT %{name}.out = f32[8,8] negate({last})\n}}"
    )


PROGRAM = "\n".join(
    [
        "HloModule step, is_scheduled=true",
        _fusion("one", ["3"]),
        _fusion("again", ["3"]),
        _fusion("two", ["4", "5"]),
        _fusion("none", []),
        "ENTRY %main (x: f32[8,8]) -> f32[8,8] {",
        "  %x = f32[8,8] parameter(0)",
        *(
            f"  {root}%{name}.call = f32[8,8] fusion(%{before}), kind=kLoop, calls=%{name}, "
            f"backend_config={_config(cycles)}"
            for root, name, before, cycles in (
                ("", "one", "x", 1000),
                ("", "again", "one.call", 500),
                ("", "two", "again.call", 200),
                ("ROOT ", "none", "two.call", 30),
            )
        ),
        "}",
    ]
)


def test_a_kernel_is_of_its_only_contraction():
    compiled = compiled_seconds(text_to_proto(PROGRAM), V5E)
    clock = CLOCK_HZ["v5e"]
    assert compiled.total == pytest.approx(1730 / clock)
    assert compiled.by_site == pytest.approx({"3": 1500 / clock})


@pytest.fixture(scope="module")
def searched():
    step, args = mlp(batch=512, width=256, hidden=1024)
    workload = trace_step(step, args, platform="tpu")
    return find(workload, V5E, Options(preset="megatron", budget_seconds=20))


def _sites(searched):
    """Site and local signature of each product, by the graph alone."""
    tables = searched.context.evaluator.tables
    graph = searched.workload.problem.graph
    return [
        (op.op_name.split("am")[1].split("~")[0], index)
        for index, op in enumerate(graph.ops)
        if op.opcode == "dot"
    ], tables


def test_prices_of_products_are_their_ratio_and_the_rest_has_one(searched):
    evaluator, space = searched.context.evaluator, searched.context.space
    split_classes = space.split_classes(searched.best.point)
    sites, tables = _sites(searched)
    sharding = shardings(tables, evaluator.n_classes, split_classes)
    predicted = evaluator.roofline.seconds(sharding)
    row_of_op = {
        kernel.op: row
        for kernel, row in zip(tables.program.kernels, tables.program.row_of_kernel, strict=True)
    }
    by_site = {site: float(predicted[row_of_op[op]]) for site, op in sites}
    total = float(predicted @ tables.kernels.count)
    rest = total - sum(by_site.values())
    # Every product three times as slow as predicted, all else half as slow again.
    compiled = CompiledSeconds(
        total=3 * sum(by_site.values()) + 1.5 * rest,
        by_site={site: 3 * seconds for site, seconds in by_site.items()},
    )
    learned = learned_prices(compiled, evaluator, split_classes)
    assert len(learned.kernels) >= 2 and learned.other_ratio == pytest.approx(1.5)
    for row in learned.kernels:
        assert row.seconds == pytest.approx(3 * row.predicted_seconds)
        # Megatron splits the hidden features, and the batch on the other axis.
        assert isinstance(row.signature, DotSignature)
        assert 1024 not in (row.signature.m, row.signature.n, row.signature.k)
    # With these prices the prediction is what was compiled.
    priced = type(evaluator)(
        evaluator.tables,
        evaluator.n_classes,
        evaluator.topology,
        None,
        mean_prices(KernelPrices(), [learned]),
    )
    again = priced.roofline.seconds(sharding)
    assert again @ tables.kernels.count == pytest.approx(compiled.total)


def test_a_site_that_is_not_in_the_program_says_nothing(searched):
    evaluator, space = searched.context.evaluator, searched.context.space
    split_classes = space.split_classes(searched.best.point)
    learned = learned_prices(CompiledSeconds(total=1.0, by_site={}), evaluator, split_classes)
    assert learned.kernels == ()
    tables = evaluator.tables
    predicted = evaluator.roofline.seconds(shardings(tables, evaluator.n_classes, split_classes))
    assert learned.other_ratio == pytest.approx(1 / (predicted @ tables.kernels.count))


def test_several_plans_have_the_mean_of_logs():
    signature = DotSignature(dtype="f32", batch=1, m=2, n=3, k=4)

    def learned(seconds, other):
        row = CompiledDot(signature=signature, seconds=seconds, predicted_seconds=1.0)
        return LearnedPrices(kernels=(row,), other_ratio=other)

    known = KernelPrices(
        dots=(CompiledDot(signature=signature, seconds=9.0, predicted_seconds=1.0),)
    )
    prices = mean_prices(known, [learned(2.0, 1.0), learned(8.0, 4.0), learned(4.0, None)])
    assert [row.seconds for row in prices.dots] == pytest.approx([4.0])
    assert prices.other_ratio == pytest.approx(2.0)
    assert mean_prices(known, []) == known
