"""Shardings in a user's code through `plan`, the decorator and the command: meshes, inputs,
outputs, errors.
"""

from functools import partial
import json

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
import numpy as np
import pytest

import automap
from automap.errors import InputError, PlanError
from automap.planner.sharding import candidate_meshes
from automap.space import point
from automap.step.user_mesh import UserMesh
from automap.topology import get_topology
from tests.user_shardings import (
    FOUR_BY_TWO,
    PROGRAMS,
    arguments,
    command,
    free,
    largest_difference,
    on,
    target,
)


PLAIN = partial(PROGRAMS["plain"], free, None)


def _constrained(sharding, program="plain"):
    return partial(PROGRAMS[program], lax.with_sharding_constraint, sharding)


def _weights(sharding, up, down):
    return {"up": sharding(*up), "down": sharding(*down)}


def _axes(spec):
    return tuple(axes or () for axes in spec)


STORED = {
    "tensor parallel": (((None, None, "model"), (None, "model", None)), ("data",)),
    "rows of parameters": (((None, "data"), (None, "data")), ("data",)),
    "columns of parameters": (((None, None, "data"), (None, None, "data")), ("data",)),
    "layers": ((("model",), ("model",)), (("data", "model"),)),
    "as no plan would": (((None, "model", "data"), (None, ("model", "data"))), (None, "model")),
}


@pytest.mark.parametrize("options", [{}, {"preset": "data-parallel"}], ids=str)
@pytest.mark.parametrize("stored", STORED)
def test_inputs_and_new_state_are_as_in_shardings_say(stored, options):
    (up, down), rows = STORED[stored]
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    shardings = (_weights(_on(mesh), up, down), _on(mesh)(*rows))
    step = jax.jit(PLAIN, in_shardings=shardings, donate_argnums=0)
    args = arguments()
    plan = automap.plan(step, args, topology="cpu:8", **options)
    assert plan.mesh.axes == (("data", 4), ("model", 2))
    for leaf, sharding in zip(plan.inputs, jax.tree.leaves(shardings), strict=True):
        assert NamedSharding(mesh, P(*leaf.spec)).is_equivalent_to(sharding, len(leaf.shape))
    expected = jax.jit(PLAIN)(*args)
    result = plan.jit(step)(*jax.tree.map(jnp.copy, args))
    assert largest_difference(result, expected) < 1e-6
    for leaf, sharding in zip(jax.tree.leaves(result[0]), jax.tree.leaves(shardings[0])):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def _on(mesh):
    return lambda *spec: NamedSharding(mesh, P(*spec))


def test_outputs_are_as_out_shardings_say():
    def step(params, x):
        return x @ params["up"][0], x @ params["up"][0], jnp.sum(x)

    columns, rows = FOUR_BY_TWO(None, "model"), FOUR_BY_TWO("data")
    jitted = jax.jit(step, out_shardings=(columns, rows, None))
    args = arguments()
    plan = automap.plan(jitted, args, topology="cpu:8")
    assert [_axes(leaf.spec) for leaf in plan.outputs] == [((), ("model",)), (("data",), ()), ()]
    result = plan.jit(jitted)(*args)
    assert result[0].sharding.spec == P(None, "model")
    assert largest_difference(result, jax.jit(step)(*args)) < 1e-5


def test_state_whose_sharding_changes_is_stored_as_each_side_says():
    before, after = FOUR_BY_TWO(None, "data"), FOUR_BY_TWO(None, None, "model")
    step = jax.jit(
        PLAIN,
        in_shardings=({"up": before, "down": None}, None),
        out_shardings=({"up": after, "down": None}, None),
    )
    plan = automap.plan(step, arguments(), topology="cpu:8")
    assert _axes(plan.inputs[1].spec) == ((), ("data",), ())
    assert _axes(plan.outputs[1].spec) == ((), (), ("model",))


@pytest.mark.parametrize("own", ["constraint", "in_shardings"])
def test_one_plan_through_all_three_ways(own, tmp_path):
    step, args = target(own=own)
    plan = automap.plan(step, args, topology="cpu:8")
    decorated = automap.parallelize(step, topology="cpu:8", cache_dir=tmp_path)
    result = decorated(*args)
    assert largest_difference(result, jax.jit(PLAIN)(*args)) < 1e-6
    path = tmp_path / "plan.json"
    done = command(
        "plan",
        "tests.user_shardings:target",
        "--arg",
        f"own={own}",
        "--topology",
        "cpu:8",
        "-o",
        str(path),
    )
    assert done.exit_code == 0, done.output
    commanded = automap.Plan.load(path)
    for other in (decorated.plan, commanded):
        assert other.mesh == plan.mesh
        assert other.inputs == plan.inputs
        assert other.constraints == plan.constraints
    assert command("simulate", str(path)).exit_code == 0
    assert largest_difference(commanded.jit(step)(*args), result) == 0.0


def test_a_cached_plan_is_of_the_same_shardings(tmp_path):
    args = arguments()

    def planned(*spec):
        step = jax.jit(PLAIN, in_shardings=(None, FOUR_BY_TWO(*spec)))
        decorated = automap.parallelize(step, topology="cpu:8", cache_dir=tmp_path)
        return _axes(decorated.plan_for(*args).inputs[-1].spec)

    assert [planned("data"), planned("model"), planned("data")] == [
        (("data",), ()),
        (("model",), ()),
        (("data",), ()),
    ]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_plan_is_refused_for_a_step_with_other_shardings():
    args = arguments()
    plan = automap.plan(
        jax.jit(PLAIN, in_shardings=(None, FOUR_BY_TWO("data"))), args, topology="cpu:8"
    )
    other = jax.jit(PLAIN, in_shardings=(None, FOUR_BY_TWO("model")))
    with pytest.raises(
        PlanError, match=r"in_shardings of the step say model,null for \[1\], the plan data,null"
    ):
        plan.jit(other)(*args)


def test_a_spec_alone_is_on_the_mesh_of_its_context_or_of_the_option():
    args, step = arguments(), _constrained(P("data", "model"))
    with pytest.raises(
        InputError, match="a PartitionSpec alone, or a shard_map, which needs a mesh.*--mesh"
    ):
        automap.plan(step, args, topology="cpu:8")
    expected = jax.jit(PLAIN)(*args)
    given = automap.plan(step, args, topology="cpu:8", mesh="data=2,model=4")
    assert dict(given.mesh.axes) == {"data": 2, "model": 4}
    assert largest_difference(given.jit(step)(*args), expected) < 1e-6
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        plan = automap.plan(step, args, topology="cpu:8")
        assert plan.mesh.axes == (("data", 4), ("model", 2))
        assert largest_difference(plan.jit(step)(*args), expected) < 1e-6
    alone = jax.jit(PLAIN, in_shardings=(None, P("data")))
    with pytest.raises(InputError, match="its in_shardings or out_shardings have a PartitionSpec"):
        automap.plan(alone, args, topology="cpu:8", mesh="data=2,model=4")


def test_a_mesh_given_binds_the_names():
    step = _constrained(FOUR_BY_TWO("data", "model"))
    plan = automap.plan(step, arguments(), topology="v5e:4x4", mesh="model=4,data=4")
    assert dict(plan.mesh.axes) == {"data": 4, "model": 4}


def test_names_without_sizes_are_searched():
    topology = get_topology("cpu:8")
    one = UserMesh(("a", "b"), None, ("a",), "here")
    axes_of_meshes = {mesh.axes for mesh in candidate_meshes(topology, None, one)}
    assert {frozenset(axes) for axes in axes_of_meshes} == {
        frozenset({("a", size), ("b", 8 // size)}) for size in (1, 2, 4, 8)
    }
    plan = automap.plan(_constrained(on(a=1, b=1)("a", "b")), arguments(), topology="cpu:8")
    assert plan.mesh.device_count == 8
    assert {name for name, _ in plan.mesh.axes} == {"a", "b"}


def _sums(width):
    """A step whose batch is not a multiple of four, stored split over a mesh that has names
    only.
    """
    one = on(a=1, b=1)
    shardings = {"in_shardings": (None, one("a")), "out_shardings": one(None, "b")}
    args = (jnp.ones((32, width)), jnp.ones((6, 32)))
    return jax.jit(lambda w, x: jnp.tanh(x @ w), **shardings), args


def test_of_names_without_sizes_those_are_searched_that_divide():
    step, args = _sums(64)
    plan = automap.plan(step, args, topology="cpu:8")
    assert dict(plan.mesh.axes)["a"] in (1, 2)
    assert _axes(plan.inputs[1].spec) == (("a",), ())
    assert _axes(plan.outputs[0].spec) == ((), ("b",))
    w, x = args
    assert largest_difference(plan.jit(step)(w, x), jnp.tanh(x @ w)) < 1e-5


@pytest.mark.parametrize("mesh", ["auto", "a=4,b=2"])
def test_what_the_steps_shardings_split_and_no_mesh_divides_is_named(mesh):
    step, args = _sums(66 if mesh == "auto" else 64)
    if mesh == "auto":  # a = 1 or 2, so b = 8 or 4
        expected = r"no mesh has sizes that divide .* is to be"
    else:
        expected = r"\[1\] \[6, 32\] is to be a,null; change the shapes"
    with pytest.raises(InputError, match=expected):
        automap.plan(step, args, topology="cpu:8", mesh=mesh)


def test_too_many_names_without_sizes_are_refused():
    names = UserMesh(tuple("abcde"), None, ("a",), "here")
    with pytest.raises(InputError, match="at most 4 such axes.*--mesh a=N,b=N"):
        candidate_meshes(get_topology("cpu:8"), None, names)


def test_sizes_fix_the_mesh_in_every_order():
    own = UserMesh(("a", "b"), (4, 2), ("a",), "here")
    meshes = candidate_meshes(get_topology("v5e:2x4"), None, own)
    assert {frozenset(mesh.axes) for mesh in meshes} == {frozenset({("a", 4), ("b", 2)})}
    named = point.Mesh(("a", "c"), (2, 4))
    assert {m.names for m in candidate_meshes(get_topology("cpu:8"), named, own)} <= {
        ("a", "c"),
        ("c", "a"),
    }


@pytest.mark.parametrize(
    ("sharding", "options", "message"),
    [
        (
            FOUR_BY_TWO("data"),
            {"mesh": "x=4,model=2"},
            "with_sharding_constraint at .*name the axis 'data'; the mesh has x, model; give a "
            "mesh with the axes data",
        ),
        (
            FOUR_BY_TWO("data"),
            {"topology": "v5e:4x4"},
            "of 8 devices, v5e:4x4 has 16; make the step for 16 devices, or .*--mesh "
            "data=N,model=N",
        ),
    ],
)
def test_meshes_that_cannot_be_are_refused(sharding, options, message):
    with pytest.raises(InputError, match=message):
        automap.plan(_constrained(sharding), arguments(), **{"topology": "cpu:8", **options})


def test_shardings_on_two_meshes_are_refused():
    step = jax.jit(
        _constrained(FOUR_BY_TWO("data")), in_shardings=(None, on(data=2, model=4)("data"))
    )
    with pytest.raises(
        InputError, match="is on the mesh data=4,model=2, in_shardings of .* on data=2,model=4"
    ):
        automap.plan(step, arguments(), topology="cpu:8")


def test_a_pin_against_the_code_is_refused():
    step = jax.jit(PLAIN, in_shardings=(None, FOUR_BY_TWO("data")))
    with pytest.raises(
        InputError, match=r"the step's own code has \[1\] as data,null; drop the pin"
    ):
        automap.plan(step, arguments(), topology="cpu:8", pin="[1]=null,model")
    plan = automap.plan(step, arguments(), topology="cpu:8", pin="[1]=data,null")
    assert _axes(plan.inputs[-1].spec) == (("data",), ())


def test_the_command_refuses_without_a_traceback():
    done = command("plan", "tests.user_shardings:target", "--topology", "v5e:4x4")
    assert done.exit_code == 2
    assert "automap: the step's shardings (first: with_sharding_constraint at" in done.output


def test_a_program_file_says_that_its_annotations_are_left_out(tmp_path):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    step = jax.jit(_constrained(_on(mesh)("data", "model")))
    path = tmp_path / "step.hlo.pb"
    proto = step.lower(*arguments()).compiler_ir("hlo")
    path.write_bytes(proto.as_serialized_hlo_module_proto())
    done = command("plan", str(path), "--topology", "cpu:8", "--json")
    assert done.exit_code == 0, done.output
    warnings = json.loads(done.stdout)["warnings"]
    assert any("sharding annotations of the program are left out" in text for text in warnings)
