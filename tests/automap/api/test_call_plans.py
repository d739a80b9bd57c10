"""Plans kept in a folder: found again without a search, and made again where a file is no use."""

import json

import jax
import pytest

import automap
from automap.api import call_plans
from automap.api.plan import Plan
from automap.errors import CacheWarning, PlanError
from tests.automap.api.steps import check_equal, filled_mlp, parallelized


def test_a_cached_plan_is_loaded_without_a_search(tmp_path, monkeypatch):
    step, make = filled_mlp()
    args = make(jax.random.key(0))
    first = parallelized(step, cache_dir=tmp_path).plan_for(*args)
    (file,) = tmp_path.iterdir()

    def no_search(*_, **__):
        raise AssertionError("searched again")

    with monkeypatch.context() as patched:
        patched.setattr(call_plans, "plan_workload", no_search)
        assert parallelized(step, cache_dir=tmp_path).plan_for(*args) == first
        with pytest.raises(AssertionError, match="searched again"):
            parallelized(step, cache_dir=tmp_path, seed=1).plan_for(*args)
    file.write_text('{"format": "automap-plan", "vers')
    assert parallelized(step, cache_dir=tmp_path).plan_for(*args).inputs == first.inputs
    assert automap.Plan.load(file).inputs == first.inputs


@pytest.mark.parametrize("change", ["one too few", "another shape"])
def test_a_cached_plan_with_other_outputs_is_a_miss(tmp_path, change):
    """Finding D6: it failed at every call."""
    step, make = filled_mlp()
    args = make(jax.random.key(0))
    first = parallelized(step, cache_dir=tmp_path).plan_for(*args)
    (file,) = tmp_path.iterdir()
    data = json.loads(file.read_text())
    if change == "one too few":
        del data["outputs"][-1]
    else:
        data["outputs"][0] |= {"shape": [4], "spec": [None]}
    file.write_text(json.dumps(data))
    edited = Plan.load(file)
    with pytest.raises(PlanError, match="the step's outputs are not those of the plan"):
        edited.jit(step).lower(*args)
    assert parallelized(step, cache_dir=tmp_path).plan_for(*args).outputs == first.outputs


def test_a_cache_that_cannot_be_written_is_a_warning_and_the_step_runs(tmp_path):
    """Finding D11: an unwritable cache raised after planning."""
    step, make = filled_mlp()
    (tmp_path / "file").write_text("")
    ours = parallelized(step, cache_dir=tmp_path / "file" / "cache")
    args = make(jax.random.key(0))
    with pytest.warns(CacheWarning, match="not kept in the cache .*: Not a directory; give a"):
        ours.plan_for(*args)
    check_equal(ours(*args), step(*args))


def test_a_link_in_a_shared_cache_is_replaced_and_its_victim_left_alone(tmp_path):
    """Finding D10: what the link pointed to was overwritten."""
    step, make = filled_mlp()
    args = make(jax.random.key(0))
    folder, victim = tmp_path / "cache", tmp_path / "victim"
    first = parallelized(step, cache_dir=folder).plan_for(*args)
    (entry,) = folder.iterdir()
    entry.unlink()
    victim.write_text("precious")
    entry.symlink_to(victim)
    assert parallelized(step, cache_dir=folder).plan_for(*args).inputs == first.inputs
    assert victim.read_text() == "precious"
    assert list(folder.iterdir()) == [entry] and not entry.is_symlink()
