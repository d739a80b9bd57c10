"""Files and options that would be read, or worked on, for ever: which limit, and what to do."""

import json
import os
from pathlib import Path

from click.testing import CliRunner
import numpy as np
import pytest
from safetensors.numpy import save_file

from automap.action_network import load_weights
from automap.api.plan import Plan
from automap.calibrate.machine import find_machine
from automap.cli import main
from automap.cost.profile import KernelProfile
from automap.errors import CalibrationError, InputError, PlanError, ProfileError, TopologyError
from automap.pipeline.agent.network import FORMAT as WEIGHTS_FORMAT
from automap.plan.file import parse
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.space.pins import _fits
from automap.topology.toml_file import parse_machine, read_machine


READERS = {
    "plan": (Plan.load, PlanError),
    "profile": (KernelProfile.load, ProfileError),
    "topology": (read_machine, TopologyError),
    "weights": (lambda path: load_weights(path, WEIGHTS_FORMAT), InputError),
}


@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(tmp_path, name):
    read, error = READERS[name]
    os.mkfifo(tmp_path / "pipe")
    for path, kind in (
        (tmp_path / "pipe", "named pipe"),
        (Path("/dev/zero"), "device"),
        (tmp_path, "folder"),
    ):
        with pytest.raises(error, match=f"is a {kind}; allowed: a regular file"):
            read(path)
    with pytest.raises(error):
        read(tmp_path / ("x" * 5000))


def test_a_file_of_many_empty_lists_is_refused_before_it_is_parsed(tmp_path):
    with pytest.raises(PlanError, match="over 4000000 values; allowed: a file written by"):
        parse("[" + "[]," * 2_000_001 + "[]]")
    with open(tmp_path / "plan.json", "wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(PlanError, match="is too large: it has 67108865; allowed: 67108864 bytes"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("count", [0, -1, 10**9, 10**100])
def test_a_pipeline_has_so_many_passes_at_most(count):
    stages = tuple(
        StageRecord(
            devices=(device,),
            cut_after=cut,
            layers="",
            forward_seconds=1.0,
            backward_seconds=1.0,
            reduce_seconds=0.0,
            sent_bytes=0,
            peak_bytes=0,
        )
        for device, cut in ((0, "1"), (1, None))
    )
    PipelineRecord(schedule="gpipe", microbatches=2**16, stages=stages)
    with pytest.raises(
        PlanError, match="microbatches: got .*; allowed: an integer from 1 to 65536"
    ):
        PipelineRecord(schedule="gpipe", microbatches=count, stages=stages)


@pytest.mark.parametrize("text", ["a = 9" + "9" * 5000, "a = " + "[" * 5000, "a = 1\na = 2"])
def test_toml_that_python_cannot_read_is_one_error(text):
    with pytest.raises(TopologyError, match="no valid TOML"):
        parse_machine(text)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("a*", "abc", True),
        ("*c", "abc", True),
        ("a*c", "abc", True),
        ("a*c", "ab", False),
        ("ab*ba", "aba", False),
        ("a*b*c", "axbxc", True),
        ("a*b*c", "acb", False),
        ("**", "x", True),
        ("*b*b*", "ab", False),
        ("*a*a*", "aba", True),
        ("[0]*", "[0]['w']", True),
        ("a.c", "abc", False),
        ("a*", "a\nb", True),
    ],
)
def test_stars_stand_for_anything(pattern, path, fits):
    assert _fits(pattern, path) is fits


def test_a_pattern_of_many_stars_takes_no_exponential_time():
    """Finding D8: a regular expression took for ever."""
    assert not _fits("*a" * 36 + "*b", "a" * 2000)
    assert _fits("*a" * 36 + "*", "a" * 2000)


@pytest.mark.parametrize("count", [0, -1, 513, 99999, 10**12])
def test_devices_to_measure_are_not_made_by_the_thousand(count):
    with pytest.raises(CalibrationError, match=f"--device-count {count}: allowed: 1 to 512"):
        find_machine(count)


def test_weights_of_a_type_that_numpy_lacks_are_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"action.0.bias": np.zeros(4, np.uint8)}, path)
    content = path.read_bytes().replace(b'"U8"', b'"F8_E4M3"'.ljust(4))
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(4))
    with pytest.raises(InputError, match="allowed: F32|no weights"):
        load_weights(path, WEIGHTS_FORMAT)


@pytest.mark.parametrize("target", ["x" * 5000, "x" * 5000 + ".pb", "a\0b"])
def test_a_name_that_no_system_takes_is_one_message(target):
    result = CliRunner().invoke(main, ["plan", target, "--topology", "v5e:2x2"])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
