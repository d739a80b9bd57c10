"""Topology and its parts: JSON round trip, refusals with the field's path, peak rates."""

import copy
import json

import pytest

from automap.errors import TopologyError
from automap.topology import Device, Topology, catalogue_entries, get_machine, get_topology


EXAMPLES = [entry.example for entry in catalogue_entries()]


def tiny_device(**changes):
    fields = {
        "name": "tiny",
        "memory_bytes": 1000,
        "hbm_bytes_per_s": 10.0,
        "flops_per_s": (("f32", 100.0), ("bf16", 400.0)),
        "matmul_efficiency": 0.5,
        "memory_efficiency": 0.5,
        "launch_seconds": 0.0,
    }
    return Device(**(fields | changes))


@pytest.mark.parametrize("name", EXAMPLES)
def test_json_round_trip_is_exact(name):
    machine = get_machine(name)
    text = json.dumps(machine.to_dict(), allow_nan=False)
    again = type(machine).from_dict(json.loads(text))
    assert again == machine
    assert hash(again) == hash(machine)


SET, DELETE = "set", "delete"
REFUSALS = [
    (("levels", 1, "size"), SET, 0, r"^levels\[1\]\.size: got 0; allowed: an integer from 2"),
    (("levels", 1, "size"), SET, True, r"^levels\[1\]\.size: got True"),
    (("levels", 0, "bytes_per_s"), SET, float("nan"), r"^levels\[0\]\.bytes_per_s: got nan"),
    (("levels", 0, "bytes_per_s"), SET, 10**400, r"^levels\[0\]\.bytes_per_s: got 1000"),
    (("levels", 0, "bytes_per_s"), SET, "1e9", r"^levels\[0\]\.bytes_per_s: got '1e9'"),
    (("levels", 0, "latency_seconds"), SET, -1, r"latency_seconds: got -1; .* >= 0"),
    (("levels", 0, "kind"), SET, "bus", r"^levels\[0\]\.kind: got 'bus'; .*ring \| line \| switch"),
    (("levels", 0, "kind"), SET, [], r"^levels\[0\]\.kind: got \[\]"),
    (("levels", 0, "measured"), SET, {}, r"^levels\[0\]\.measured: got \{\}; allowed: a non-empty"),
    (("device", "measured"), SET, [], r"^device\.measured: got \[\]; allowed: a non-empty"),
    (("levels", 0, "shared_by"), SET, 0, r"^levels\[0\]\.shared_by: got 0"),
    (("levels", 1, "name"), SET, "nvlink", r"^levels: got \['nvlink', 'nvlink'\]"),
    (("levels", 0), SET, 7, r"^levels\[0\]\.value: got 7; allowed: a table"),
    (("levels",), SET, {}, r"^levels: got \{\}; allowed: a list"),
    (("levels",), DELETE, None, r"^levels: missing"),
    (("device", "memory_bytes"), SET, 1.5, r"^device\.memory_bytes: got 1\.5; .*integer"),
    (("device", "memory_bytes"), DELETE, None, r"^device\.memory_bytes: missing"),
    (("device", "hbm_bytes_per_s"), SET, float("inf"), r"^device\.hbm_bytes_per_s: got inf"),
    (("device", "matmul_efficiency"), SET, 1.5, r"matmul_efficiency: got 1\.5; .*<= 1"),
    (("device", "colour"), SET, "red", r"^device\.colour: unknown field; allowed: name, memory"),
    (("device", "flops_per_s"), SET, [], r"^device\.flops_per_s: got \[\]; allowed: a table"),
    (("device", "flops_per_s"), SET, {"bf16": 1}, r"^device\.flops_per_s: got \['bf16'\]; .*f32"),
    (("device", "flops_per_s", "bf16"), SET, 0, r"^device\.flops_per_s\.bf16: got 0"),
    (("device", "flops_per_s", "bfloat16"), SET, 1, r"^device\.flops_per_s\.bfloat16: .*bf16"),
    (("device", "source", 0, "url"), SET, "x", r"^device\.source\[0\]\.url: unknown field"),
    (("device",), SET, "h100", r"^device\.value: got 'h100'; allowed: a table"),
    (("platform",), SET, "gpu", r"^platform: got 'gpu'; allowed: tpu \| cuda \| cpu"),
    (("name",), SET, "", r"^name: got ''; allowed: a non-empty string"),
    (("extra",), SET, 1, r"^extra: unknown field; allowed: name, platform, device, levels"),
]


@pytest.mark.parametrize(("path", "action", "value", "message"), REFUSALS)
def test_from_dict_names_the_field(path, action, value, message):
    data = copy.deepcopy(get_topology("2x8xh100").to_dict())
    table = data
    for key in path[:-1]:
        table = table[key]
    if action == SET:
        table[path[-1]] = value
    else:
        del table[path[-1]]
    with pytest.raises(TopologyError, match=message):
        Topology.from_dict(data)


def test_no_more_devices_than_the_limit():
    data = get_topology("2x8xh100").to_dict()
    for level in data["levels"]:
        level["size"] = 2**12
    with pytest.raises(TopologyError, match="at most 65536 devices"):
        Topology.from_dict(data)


@pytest.mark.parametrize(
    ("name", "dtype", "same_as"),
    [
        ("v5e:2x2", "f32", "bf16"),
        ("v5e:2x2", "f16", "bf16"),
        ("v5e:2x2", "f8e5m2", "bf16"),
        ("v5e:2x2", "u4", "s8"),
        ("8xa100", "f8e4m3fn", "f16"),
        ("8xv100", "bf16", "f32"),
        ("8xv100", "f8e4m3", "f16"),
        ("8xh100", "pred", "f32"),
        ("8xh100", "c128", "f64"),
    ],
)
def test_types_without_a_unit_run_on_the_next_wider(name, dtype, same_as):
    device = get_topology(name).device
    assert dtype not in dict(device.flops_per_s) or dtype == "f32"
    assert device.peak_flops_per_s(dtype) == dict(device.flops_per_s)[same_as]


def test_own_rate_comes_before_the_fallback():
    assert tiny_device().peak_flops_per_s("bf16") == 400.0
    assert tiny_device().peak_flops_per_s("f32") == 100.0


def test_unknown_type_lists_the_known():
    with pytest.raises(TopologyError, match=r"got 'float32'; allowed: bf16, c128, .* f32, "):
        tiny_device().peak_flops_per_s("float32")


def test_a_device_needs_f32_and_each_type_once():
    with pytest.raises(TopologyError, match="each once, with f32"):
        tiny_device(flops_per_s=(("f32", 1.0), ("f32", 2.0)))
