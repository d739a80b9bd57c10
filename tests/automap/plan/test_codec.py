"""The plan's JSON: every valid plan survives it, and nothing else is read."""

import copy
import json
import math
from math import prod
from pathlib import Path
import re
import typing
from typing import get_args

from hypothesis import given, settings, strategies as st
import jax
import pytest

from automap.api.plan import Plan
from automap.cost.collectives import CollectiveKind
from automap.errors import PlanError
from automap.plan.checks import DTYPES
from automap.plan.file import layout, parse
from automap.plan.parts import CollectiveName, Phase, Role
from automap.plan.point import PointRecord
from automap.plan.refined import RefinementEnd
from automap.topology import get_topology
from tests.automap.broken_json import ACTIONS, changed, places
from tests.automap.plan.json_values import amount, count, digest, rates, row, rows, text
from tests.automap.plan.test_memory_curve import CURVE


SAMPLE = Path(__file__).with_name("plan_sample.json")
MESHES = {
    "8xh100": ((8,), (2, 4), (2, 2, 2), (1, 8)),
    "v5e:4x4": ((16,), (4, 4), (2, 2, 4)),
    "cpu:1": ((1,), ()),
}
TOPOLOGIES = {name: get_topology(name).to_dict() for name in MESHES}


@st.composite
def specs(draw, axes, rank):
    """Any division of some of the axes among the dimensions."""
    taken = draw(st.permutations(axes)) if axes else []
    dims = [[] for _ in range(rank)]
    for axis in taken[: draw(st.integers(0, len(taken)))] if rank else []:
        dims[draw(st.integers(0, rank - 1))].append(axis)
    return [dim or None for dim in dims]


@st.composite
def leaves(draw, sizes, roles):
    result = []
    for path in draw(st.lists(text, unique=True, max_size=4)):
        spec = draw(specs(list(sizes), draw(st.integers(0, 3))))
        shape = [
            draw(st.integers(0, 9)) * math.prod(sizes[axis] for axis in axes or ()) for axes in spec
        ]
        dtype, role = draw(st.sampled_from([*sorted(DTYPES), "key<fry>"])), draw(roles)
        result.append({"path": path, "shape": shape, "dtype": dtype, "role": role, "spec": spec})
    return result


VERIFIED = row(
    compiler=st.sampled_from(["cpu", "gpu", "tpu"]),
    versions=st.lists(st.tuples(text, text).map(list), max_size=2),
    fits=st.booleans(),
    peak_bytes=count,
    compile_seconds=amount,
    tried=count,
)


classes = st.lists(count, max_size=3, unique=True)


def points(n_axes):
    levels = st.lists(st.integers(0, 2), max_size=3)
    return row(
        layers=st.sampled_from(["folded", "apart"]),
        compute=st.lists(classes, min_size=n_axes, max_size=n_axes),
        storage=st.lists(levels, min_size=n_axes, max_size=n_axes),
        last=classes,
        whole=classes,
    )


def decisions(axes):
    common = {"group": text, "axes": axes, "covers": st.lists(text, max_size=3), "reason": text}
    compute = row(kind=st.just("compute"), level=st.none(), **common)
    storage = row(kind=st.just("storage"), level=st.sampled_from(["full", "optimizer"]), **common)
    return st.lists(compute | storage, max_size=3)


def searches(n_axes):
    """Records of searches on a mesh of some axes."""
    return row(
        strategy=text,
        seconds=amount,
        evaluations=count,
        seed=count,
        gap=st.none() | amount,
        point=st.none() | points(n_axes),
        imposed=st.lists(text, max_size=2),
        memory_limit_bytes=st.none() | count,
        frontier=st.lists(row(step_seconds=amount, peak_bytes=count), max_size=3),
    )


@st.composite
def refined(draw):
    """Records of refinements of which the second plan is chosen, or none."""
    compiled = row(
        plan=text,
        predicted_seconds=amount,
        predicted_bytes=count,
        expected_seconds=amount,
        compiled_seconds=st.none() | amount,
        compiled_bytes=st.none() | count,
        fits=st.just(True),
        compile_seconds=amount,
        note=st.just(""),
    )
    failed = {"compiled_seconds": None, "compiled_bytes": None, "fits": False, "note": "failed"}
    rows = draw(st.lists(compiled, max_size=3))
    if rows and draw(st.booleans()):
        rows[0] |= failed
    return {
        "compiler": draw(st.sampled_from(["gpu", "tpu"])),
        "seconds": draw(amount),
        "ended": draw(st.sampled_from(get_args(RefinementEnd))),
        "compiled": rows,
        "chosen": draw(st.sampled_from([None, 1] if len(rows) > 1 else [None])),
    }


# A kernel, then a loop of three trips: a kernel and the all-reduce that waits for it.
PROGRAM = {
    "texts": ["dot", "while", "all-reduce", "f32[8]", "", "forward", "data"],
    "kind": ["kernel", "loop", "spare", "urgent"],
    "within": [-1, -1, 1, 1],
    "after": [[], [0], [], [2]],
    "seconds": [1.0, 0.0, 2.0, 0.5],
    "trips": [1, 3, 1, 1],
    "slot": [0, 1, 2, 3],
    "bytes": [0.0, 0.0, 0.0, 32.0],
    "op": [0, 1, 0, 2],
    "tensor": [3, 4, 3, 3],
    "op_name": [4, 4, 4, 4],
    "source": [4, 4, 4, 4],
    "phase": [5, 5, 5, 5],
    "axes": [4, 4, 4, 6],
}


def predicted_costs(some_axes):
    memory = "parameters optimizer other_state inputs activations temporaries".split()
    seconds = "step compute collective bubble hidden host".split()
    return row(
        **{f"{name}_seconds": amount for name in seconds},
        peak_bytes=count,
        fits=st.booleans(),
        on_chip_bytes=st.sampled_from([0, 0, 1]),
        memory_margin=st.floats(0, 1),
        unsure=st.booleans(),
        memory=row(**dict.fromkeys(memory, count)),
        collectives=rows(
            kind=st.sampled_from(get_args(CollectiveName)),
            axes=some_axes,
            phase=st.sampled_from(get_args(Phase)),
            count=count,
            bytes=count,
        ),
        rates=st.none() | rates(),
        # Only what fits may be unsure, and no more can be on the chip than there is at all.
    ).filter(
        lambda made: (
            (made["fits"] or not made["unsure"]) and made["on_chip_bytes"] <= made["peak_bytes"]
        )
    )


@st.composite
def plans(draw):
    """The JSON of any valid plan."""
    topology = draw(st.sampled_from(sorted(MESHES)))
    mesh = draw(st.sampled_from(MESHES[topology]))
    names = draw(st.lists(text.filter(bool), unique=True, min_size=len(mesh), max_size=len(mesh)))
    sizes = dict(zip(names, mesh, strict=True))
    some_axes = st.lists(st.sampled_from(names), unique=True) if names else st.just([])
    roles = st.sampled_from(get_args(Role))
    data = draw(
        row(
            format=st.just("automap-plan"),
            version=st.just(1),
            workload=row(
                target=text,
                hlo_sha256=digest,
                jaxpr_sha256=st.none() | digest,
                rules=st.just([["f", "a->a"]]),
                arguments=st.lists(st.tuples(text, text).map(list), max_size=2),
                weak_inputs=st.lists(text, max_size=2),
                jax_version=text,
                made_from=st.sampled_from(["target", "step"]),
            ),
            topology=st.just(TOPOLOGIES[topology]),
            mesh=row(
                axes=st.just([[name, size] for name, size in sizes.items()]),
                devices=st.none() | st.permutations(range(prod(mesh))),
            ),
            inputs=leaves(sizes, roles.filter(lambda role: role != "result")),
            outputs=leaves(sizes, roles),
            # One place has one sharding.
            constraints=st.lists(
                row(value=text, at=text, spec=specs(names, 3)),
                max_size=2,
                unique_by=lambda constraint: constraint["at"],
            ),
            **dict.fromkeys(("pipeline", "placement", "streams", "levers"), st.none()),
            predicted=predicted_costs(some_axes),
            verified=VERIFIED,
            refined=st.none() | refined(),
            presets=rows(name=text, step_seconds=amount, peak_bytes=count, fits=st.booleans()),
            search=searches(len(mesh)),
            decisions=decisions(some_axes),
            conflicts=rows(
                **dict.fromkeys(("group", "with", "at", "outcome"), text),
                outcomes=rows(name=text, step_seconds=amount, peak_bytes=count, fits=st.booleans()),
            ),
            warnings=st.lists(text, max_size=3),
            program=st.none() | st.just(PROGRAM),
            memory_curve=st.none() | st.just(CURVE),
        )
    )
    return draw(st.sampled_from([data, _unverified(data)]))


def _unverified(data):
    """The same without a verdict, where no compiler has chosen it."""
    is_chosen = data["refined"] is not None and data["refined"]["chosen"] is not None
    return data if is_chosen else data | {"verified": None}


@settings(max_examples=60, deadline=None)
@given(plans())
def test_every_valid_plan_survives(data):
    plan = Plan.from_json(data)
    assert plan.to_json() == data
    assert Plan.from_json(parse(layout(plan.to_json()))) == plan
    assert plan.explain().startswith("plan for ")
    assert plan.diff(plan) == "the plans are equal\n"


@pytest.mark.parametrize(
    ("column", "entry", "got", "message"),
    [
        ("seconds", 0, -1.0, "program.seconds[0]: got -1.0; allowed: a finite number >= 0"),
        ("seconds", 2, 1e308, "program.seconds[2]: got 1e+308; allowed: a step of finite length"),
        ("trips", 1, -1, "program.trips[1]: got -1; allowed: an integer from 0"),
        ("kind", 0, "kernal", "program.kind[0]: got 'kernal'; allowed: kernel | spare"),
        ("op", 0, 7, "program.op[0]: got 7; allowed: 0..6, a text"),
        ("phase", 0, 3, "program.phase[0]: got 'f32[8]'; allowed: forward | backward | update"),
        ("within", 2, 2, "program.within[2]: got 2; allowed: -1, or the number of a loop before"),
        ("within", 2, 0, "program.within[2]: got 0; allowed: -1, or the number of a loop before"),
        ("after", 1, [1], "program.after[1][0]: got 1; allowed: a task before it"),
        ("after", 3, [0], "program.after[3][0]: got 0; allowed: a task before it that is in the"),
    ],
)
def test_a_program_that_is_none_is_refused(column, entry, got, message):
    data = json.loads(SAMPLE.read_text()) | {"program": copy.deepcopy(PROGRAM)}
    assert Plan.from_json(data).program is not None
    data["program"][column][entry] = got
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(data)


def test_a_program_with_a_column_too_short_or_too_deep_is_refused():
    data = json.loads(SAMPLE.read_text()) | {"program": copy.deepcopy(PROGRAM)}
    del data["program"]["slot"][0]
    with pytest.raises(PlanError, match=r"program\.slot: .*allowed: 4 entries"):
        Plan.from_json(data)
    deep = {name: [column[1]] * 70 for name, column in PROGRAM.items() if name != "texts"}
    deep |= {"texts": PROGRAM["texts"], "within": list(range(-1, 69)), "after": [[]] * 70}
    with pytest.raises(PlanError, match=r"program\.within\[65\]: .*at most 64 loops deep"):
        Plan.from_json(data | {"program": deep})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("chosen", 2, "refined.chosen: got 2; allowed: null, or from 0 to 1"),
        ("chosen", 0, "refined.compiled[0].fits: false; allowed: true for what is chosen"),
        ("ended", "tired", "refined.ended: got 'tired'; allowed: nothing faster is expected | "),
        ("compiler", "cpu", "refined.compiler: got 'cpu'; allowed: gpu | tpu"),
        ("seconds", -1.0, "refined.seconds: got -1.0; allowed: a finite number >= 0"),
    ],
)
def test_a_refinement_that_contradicts_itself_is_refused(field, value, message):
    data = copy.deepcopy(SAMPLE_JSON)
    data["refined"][field] = value
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(data)


def test_a_plan_chosen_by_a_compiler_is_verified_and_one_that_failed_has_no_verdict():
    data = copy.deepcopy(SAMPLE_JSON) | {"verified": None}
    with pytest.raises(PlanError, match=re.escape("refined.chosen: got 1; allowed: null for a")):
        Plan.from_json(data)
    data = copy.deepcopy(SAMPLE_JSON)
    data["refined"]["compiled"][1]["note"] = "it aborted"
    with pytest.raises(PlanError, match=re.escape("refined.compiled[1].note: got 'it aborted'")):
        Plan.from_json(data)


def test_a_file_from_before_verification_and_points_is_read():
    data = json.loads(SAMPLE.read_text())
    older = copy.deepcopy(data)
    del older["verified"], older["refined"], older["mesh"]["devices"]
    for name in ("arguments", "weak_inputs", "jax_version", "made_from"):
        del older["workload"][name]
    for name in ("point", "imposed", "memory_limit_bytes", "frontier"):
        del older["search"][name]
    plan = Plan.from_json(older)
    assert plan.mesh.devices is None and plan.mesh.order == tuple(range(8))
    assert plan.verified is None and plan.refined is None
    assert plan.workload.arguments == () and plan.search.point is None
    assert Plan.from_json(plan.to_json()) == plan


SAMPLE_JSON = json.loads(SAMPLE.read_text())
PLACES = list(places(SAMPLE_JSON))
JUNK = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 1.5, math.nan, math.inf, -0.5, 10**400, 2**64]
    + ["", "model", "data", "full", "compute", "float32", "\ud800", "x" * 100]
    + [
        [],
        {},
        [[]],
        [None],
        ["model"],
        [["model"]],
        [["data", 8]],
        list(range(8)),
        {"axes": []},
        [1, "a"],
    ]
)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(ACTIONS), JUNK)
def test_a_changed_file_is_read_as_it_says_or_refused(path, action, junk):
    data = changed(SAMPLE_JSON, path, action, junk)
    try:
        plan = Plan.from_json(data)
    except PlanError as error:
        assert str(error)
        return
    # Nothing was dropped, added or reinterpreted on the way, but for what older files lack.
    data.setdefault("verified", None)
    data.setdefault("refined", None)
    data.setdefault("program", None)
    data.setdefault("levers", None)
    data.setdefault("memory_curve", None)
    for field, value in (("arguments", []), ("weak_inputs", []), ("jax_version", "")):
        data["workload"].setdefault(field, value)
    data["workload"].setdefault("made_from", "target")
    data["mesh"].setdefault("devices", None)
    later = {
        "hidden_seconds": 0.0,
        "host_seconds": 0.0,
        "on_chip_bytes": 0,
        "memory_margin": 0.0,
        "unsure": False,
        "rates": None,
    }
    data["predicted"] = {**later, **data["predicted"]}
    for field, value in (("point", None), ("imposed", []), ("memory_limit_bytes", None)):
        data["search"].setdefault(field, value)
    data["search"].setdefault("frontier", [])
    assert plan.to_json() == data


def test_names_of_roles_phases_and_collectives_are_those_of_the_graph():
    from automap.choices import Layers
    from hlo_tools.analyses.phases import Phase as GraphPhase
    from hlo_tools.analyses.roles import Role as GraphRole

    layers = typing.get_type_hints(PointRecord)["layers"]
    assert get_args(layers) == get_args(Layers)
    assert set(get_args(Role)) == {role.value for role in GraphRole} | {"result"}
    assert set(get_args(Phase)) == {phase.name.lower() for phase in GraphPhase}
    assert set(get_args(CollectiveName)) == {kind.value for kind in CollectiveKind}


def test_dtypes_are_names_that_jax_has():
    # float0 is the type of a gradient of an integer; jax.numpy has no name for it.
    for name in DTYPES - {"float0"}:
        assert str(jax.numpy.dtype(name)) == name
