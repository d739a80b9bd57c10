"""Degrees of plans, as MaxText and Megatron-LM are configured, and back."""

from dataclasses import replace
import json
from math import prod

from click.testing import CliRunner
from hypothesis import given, strategies as st
import pytest

import automap
from automap.api.plan import Plan
from automap.cli import main
from automap.errors import InputError
from automap.plan.degrees import (
    Degrees,
    maxtext,
    megatron,
    plan_degrees,
    plan_options,
    read_maxtext,
    read_megatron,
)
from tests.automap.plan.test_file import SAMPLE
from tests.steps import mlp


def _run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


# Two hosts of four: the outer axis is between hosts.
@pytest.mark.parametrize(
    ("preset", "mesh", "inside", "between", "optimizer"),
    [
        ("data-parallel", "data=8", {"data": 4}, {"data": 2}, False),
        ("zero-1", "data=8", {"data": 4}, {"data": 2}, True),
        ("zero-3", "data=8", {"fsdp": 4}, {"fsdp": 2}, False),
        ("megatron", "model=8", {"tensor": 4}, {"tensor": 2}, False),
        ("megatron", "data=4,model=2", {"tensor": 2, "data": 2}, {"data": 2}, False),
    ],
)
def test_a_presets_degrees_are_its_own_and_come_back(preset, mesh, inside, between, optimizer):
    step, args = mlp(batch=64)
    plan = automap.plan(step, args, topology="2x4xv100", mesh=mesh, preset=preset)
    degrees = plan_degrees(plan)
    # The axes of a mesh may lie in either order, which says what is between hosts.
    total = {r: inside.get(r, 1) * between.get(r, 1) for r in {*inside, *between}}
    assert {r: degrees.degree(r) for r in total} == total
    assert degrees.device_count == 8 and degrees.splits_optimizer == optimizer
    if len(total) == 1:
        assert (degrees.inside, degrees.between) == (inside, between)
    words, _ = plan_options(read_maxtext("\n".join(maxtext(degrees)), 8))
    read = dict(zip(words[::2], words[1::2], strict=True))
    renamed = read["--mesh"].replace("fsdp=", "data=")
    assert sorted(renamed.split(",")) == sorted(mesh.split(","))
    # MaxText has no word for optimizer state alone.
    assert read["--preset"] == preset.replace("zero-1", "data-parallel")


def test_a_pipelines_degrees_are_its_stages_and_their_devices():
    step, args = mlp(batch=64)
    plan = automap.plan(step, args, topology="2x4xv100", space="pipeline", stages=2, microbatches=4)
    degrees = plan_degrees(plan)
    counts = {len(stage.devices) for stage in plan.pipeline.stages}
    assert degrees.inside["pipeline"] == 2
    assert degrees.inside.get("data", 1) == (counts.pop() if len(counts) == 1 else 1)
    assert "--pipeline-model-parallel-size 2" in megatron(degrees)
    assert "num_pipeline_microbatches: 4" in maxtext(degrees)
    words, _ = plan_options(degrees)
    assert words == ["--space", "hybrid", "--stages", "2", "--microbatches", "4"]


parts = st.dictionaries(
    st.sampled_from(["data", "fsdp", "tensor", "context", "expert", "pipeline"]),
    st.sampled_from([2, 4]),
)


@given(parts, parts, st.booleans(), st.booleans())
def test_maxtexts_lines_say_the_degrees_they_were_made_of(inside, between, splits_sequence, remat):
    is_split = splits_sequence and "tensor" in {*inside, *between}
    degrees = Degrees(
        inside=inside, between=between, splits_sequence=is_split, rematerializes_all=remat
    )
    read = read_maxtext("\n".join(maxtext(degrees)), degrees.device_count)
    # What the policy means here is noted.
    assert len(read.notes) == remat and replace(read, notes=()) == degrees


@given(parts.filter(lambda part: "fsdp" not in part), st.booleans(), st.booleans(), st.booleans())
def test_megatrons_arguments_say_the_degrees_they_were_made_of(inside, sequence, optimizer, remat):
    degrees = Degrees(
        inside=inside,
        between={},
        splits_sequence=sequence,
        splits_optimizer=optimizer,
        rematerializes_all=remat,
    )
    assert read_megatron(" ".join(megatron(degrees)), degrees.device_count) == degrees


@pytest.mark.parametrize(("kept", "line"), [([], True), ([{"at": "2:out0", "value": "x"}], False)])
def test_a_plan_whose_blocks_keep_nothing_rematerializes_all(kept, line):
    data = json.loads(SAMPLE.read_text()) | {
        "levers": {
            "remat": [{"kind": "layers", "blocks": ["4", "9"], "equations": 5, "kept": kept}],
            "recompute_seconds": 0.1,
            "without": {"step_seconds": 1.0, "peak_bytes": 8, "fits": False},
        }
    }
    degrees = plan_degrees(Plan.from_json(data))
    assert ("remat_policy: full" in maxtext(degrees)) == line
    assert ("--recompute-granularity full" in megatron(degrees)) == line
    assert any("which values blocks keep" in note for note in degrees.notes) != line


def test_one_degree_may_be_what_is_left_and_a_later_line_wins():
    text = "ici_fsdp_parallelism: -1\nici_tensor_parallelism: 2\nici_tensor_parallelism=4"
    assert read_maxtext(text, 16).inside == {"fsdp": 4, "tensor": 4}


def test_megatrons_data_parallel_size_is_what_is_left_of_the_world():
    script = "torchrun pretrain.py --tensor-model-parallel-size 4 \\\n --use-distributed-optimizer"
    degrees = read_megatron(script, 32)
    assert degrees.inside == {"tensor": 4, "data": 8} and degrees.splits_optimizer
    yaml = "tensor_model_parallel_size: 4\nsequence_parallel: true\npipeline_model_parallel_size: 2"
    degrees = read_megatron(yaml, 32)
    assert degrees.inside == {"tensor": 4, "pipeline": 2, "data": 4} and degrees.splits_sequence
    assert not read_megatron(
        f"{yaml}\nsequence_parallel: false".replace("true", "false"), 32
    ).splits_sequence


@pytest.mark.parametrize(
    ("read", "text", "count", "message"),
    [
        (read_maxtext, "learning_rate: 3", 8, "no ici_..._parallelism"),
        (read_maxtext, "ici_fsdp_parallelism: -1\ndcn_data_parallelism: -1", 8, "are -1; of 8"),
        (read_maxtext, "ici_fsdp_parallelism: 4", 8, "are for 4 devices; the topology has 8"),
        (read_maxtext, "ici_fsdp_parallelism: 0", 8, "allowed: -1, or from 1"),
        (read_maxtext, "ici_diloco_parallelism: 2", 8, "allowed axes: data, fsdp"),
        (read_megatron, "--lr 1", 8, "none of --tensor-model-parallel-size"),
        (read_megatron, "--tensor-model-parallel-size 3", 8, "has to divide what is left"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(read, text, count, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        read(text, count)


def test_the_commands_write_and_read_and_say_what_they_leave_out(tmp_path):
    plan, config = tmp_path / "plan.json", tmp_path / "config.yml"
    target = ["tests.steps:mlp", "--topology", "v5e:2x4"]
    made = ["--mesh", "data=2,model=4", "--preset", "megatron"]
    assert _run("plan", *target, *made, "-o", plan).exit_code == 0
    written = _run("export", plan, "--to", "maxtext")
    assert "ici_tensor_parallelism: 4" in written.stdout
    config.write_text(written.stdout + "remat_policy: full\n")
    read = _run("degrees", config, "--from", "maxtext", "--topology", "v5e:2x4")
    assert read.exit_code == 0 and "remat_policy full is the model's" in read.stderr
    again = _run("plan", *target, *read.stdout.split(), "--json", "-q")
    before, after = json.loads(plan.read_text()), json.loads(again.stdout)
    assert [leaf["spec"] for leaf in after["inputs"]] == [leaf["spec"] for leaf in before["inputs"]]
    wrong = _run("degrees", config, "--from", "megatron", "--topology", "v5e:2x4")
    assert wrong.exit_code == 2 and "is it for Megatron?" in wrong.stderr
    assert (
        _run("degrees", tmp_path / "absent", "--from", "maxtext", "--topology", "8xh100").exit_code
        == 2
    )
    values = json.loads(_run("export", plan, "--to", "megatron", "--json").stdout)
    assert prod(values["degrees"]["inside"].values()) == 8


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_maxtext, "ici_fsdp_parallelism: " + "9" * 5000),
        (read_maxtext, "ici_fsdp_parallelism: 8\nnum_pipeline_microbatches: " + "9" * 5000),
        (read_megatron, "--tensor-model-parallel-size " + "9" * 5000),
    ],
)
def test_a_number_of_thousands_of_digits_is_no_count(read, text):
    with pytest.raises(InputError, match="of 5000 digits; allowed: up to 10"):
        read(text, 8)
