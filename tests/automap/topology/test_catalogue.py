"""Names of topologies: what they mean, and what is refused with which words."""

import dataclasses
from types import SimpleNamespace

import pytest

from automap.errors import TopologyError
from automap.topology import (
    Graph,
    catalogue_entries,
    get_graph,
    get_machine,
    get_topology,
    topology_from_devices,
)
from automap.topology.gpu_devices import GPUS
from automap.verify.gpu_targets import GPU_TARGETS


def shape(topology):
    return [(level.name, level.size, level.kind) for level in topology.levels]


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("v5e:1x1", []),
        ("v5e:4x8", [("ici-y", 8, "line"), ("ici-x", 4, "line")]),
        ("v6e:8x16", [("ici-y", 16, "ring"), ("ici-x", 8, "line")]),
        ("v4:2x2x1", [("ici-y", 2, "line"), ("ici-x", 2, "line")]),
        ("v5p:2x4x4", [("ici-z", 4, "line"), ("ici-y", 4, "line"), ("ici-x", 2, "line")]),
        ("v5p:4x4x8", [("ici-z", 8, "ring"), ("ici-y", 4, "ring"), ("ici-x", 4, "ring")]),
        ("tpu7x:2x2x1", [("die", 2, "switch"), ("ici-y", 2, "line"), ("ici-x", 2, "line")]),
        ("1xh100", []),
        ("8xh100", [("nvlink", 8, "switch")]),
        ("2x8xv100", [("nvlink", 8, "switch"), ("network", 2, "switch")]),
        ("4x1xa100", [("network", 4, "switch")]),
        ("4x8xb200", [("nvlink", 8, "switch"), ("network", 4, "switch")]),
        ("2x72xgb200", [("nvlink", 72, "switch"), ("network", 2, "switch")]),
        ("gb200-nvl72", [("nvlink", 72, "switch")]),
        ("gb300-nvl72", [("nvlink", 72, "switch")]),
        ("4x2080ti", [("pcie", 4, "switch")]),
        ("2x4x2080ti", [("pcie", 4, "switch"), ("network", 2, "switch")]),
        ("2xk80", [("pcie-pair", 2, "switch")]),
        ("6xk80", [("pcie-pair", 2, "switch"), ("pcie-host", 3, "switch")]),
        ("flexflow-p100", [("nvlink", 4, "switch"), ("network", 4, "switch")]),
        (
            "flexflow-k80",
            [("pcie-pair", 2, "switch"), ("pcie-host", 2, "switch"), ("network", 16, "switch")],
        ),
        ("automap-b", [("nvlink", 8, "switch"), ("network", 3, "switch")]),
        ("cpu:1", []),
        ("cpu:8", [("host", 8, "switch")]),
        ("  8xH100 ", [("nvlink", 8, "switch")]),
    ],
)
def test_levels(name, levels):
    assert shape(get_topology(name)) == levels


def test_a_v5e_dimension_has_half_the_one_way_bandwidth_of_the_chip():
    # 400 GB/s both ways over four ports: 50 GB/s a port one way, two ports a dimension.
    assert {level.bytes_per_s for level in get_topology("v5e:4x4").levels} == {100e9}


def test_one_card_per_host_is_shared_and_one_per_gpu_is_not():
    shared = get_topology("2x4xv100").levels[-1]
    assert (shared.bytes_per_s, shared.shared_by) == (25e9 / 8, 4)
    own = get_topology("2x4xh100").levels[-1]
    assert (own.bytes_per_s, own.shared_by) == (50e9, 1)
    k80 = get_topology("flexflow-k80").levels
    assert [(level.shared_by, level.reach) for level in k80] == [
        (1, "host"),
        (2, "host"),
        (4, "network"),
    ]
    assert k80[-1].bytes_per_s == 7e9


def test_what_a_named_machine_is_made_of():
    for config, hosts in (("a", 2), ("b", 3), ("c", 4)):
        machine, generic = get_topology(f"automap-{config}"), get_topology(f"{hosts}x8xv100")
        assert (machine.levels, machine.device) == (generic.levels, generic.device)
        assert machine.levels[-1].bytes_per_s == 25e9 / 8
    graph = get_graph("haswell-4xk80")
    assert [kind.name for kind in graph.kinds] == ["haswell", "k80"]
    assert graph.device_count == 5
    assert get_graph("flexflow-k80").device_count == 64


def test_a_graph_is_no_topology():
    with pytest.raises(
        TopologyError, match=r"graph of 3 devices \(haswell, k80\).*serves --space placement"
    ):
        get_topology("haswell-2xk80")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e:3x3", r"got v5e:3x3; allowed slices of v5e: 1x1, 2x2, 2x4, .*16x16; for example"),
        ("v5e:4", "allowed slices of v5e"),
        ("v5e:", "allowed slices of v5e"),
        ("v5e:4x4x4", "allowed slices of v5e"),
        ("v5p:4x4", "allowed slices of v5p: 1x1x1, .*three multiples of 4 with at most 6144"),
        ("v4:4x4x6", "allowed slices of v4"),
        ("v4:32x32x32", "at most 4096 chips"),
        ("v5e:" + "9" * 5000, "allowed slices of v5e"),
        ("v5e:4x²", "allowed slices of v5e"),
        ("v9:2x2", r"got 'v9:2x2'; allowed: v4:AxBxC, v5e:AxB, .*local, or the path of a .toml"),
        ("16xh100", "1 to 8 GPUs a host .* 2x8xh100"),
        ("0x8xh100", "1 to 8192 hosts"),
        ("8xb300", "allowed GPUs: k80, p100, titan-xp, .*h200, b200, gb200, gb300; .*TOML file"),
        ("3xk80", "up to 2 on pcie-pair x up to 4 on pcie-host"),
        ("5xp100", "1 to 4 GPUs a host .*2x4xp100"),
        ("automap-d", "flexflow-p100, flexflow-k80, automap-a, .*haswell-2xk80"),
        ("cpu:0", "cpu:1 to cpu:4096"),
        ("h100", "allowed: v4:AxBxC"),
        ("", "topology: got ''"),
        (8, "topology: got 8; allowed: a non-empty string"),
    ],
)
def test_refused_names(name, message):
    with pytest.raises(TopologyError, match=message):
        get_topology(name)


def test_every_entry_is_sourced_and_its_example_is_its_own():
    entries = catalogue_entries()
    assert len({entry.pattern for entry in entries}) == len(entries)
    for entry in entries:
        assert get_machine(entry.example) == entry.machine
        graph = isinstance(entry.machine, Graph)
        for link in entry.machine.links if graph else entry.machine.levels:
            assert covered(link) == {"all"} or {"bytes_per_s", "latency_seconds"} <= covered(link)
        for kind in entry.machine.kinds if graph else [entry.machine.device]:
            there = [f for f in dataclasses.fields(kind) if getattr(kind, f.name) != f.default]
            numbers = {f.name for f in there} - {"name", "source"}
            assert covered(kind) == {"all"} or covered(kind) >= numbers


def covered(row):
    return {name for source in row.source for name in source.field.split(", ")}


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("8xb200", "bf16", 2250),
        ("8xb200", "f8e5m2", 4500),
        ("4xp100", "f16", 21.2),
        ("4xp100", "bf16", 10.6),
        ("1xk80", "f16", 4.37),
        ("1xtitan-xp", "f16", 12.15),
        ("1x2080ti", "f16", 53.8),
    ],
)
def test_rates_of_the_papers_gpus(name, dtype, tflops):
    assert get_topology(name).device.peak_flops_per_s(dtype) == pytest.approx(tflops * 1e12)


def device(kind, platform, **fields):
    return SimpleNamespace(device_kind=kind, platform=platform, **fields)


def test_local_here_is_the_devices_jax_shows():
    import jax

    assert get_topology("local").device_count == len(jax.devices())


def test_local_tpu_is_the_box_of_its_chips():
    chips = [
        device("TPU7x", "tpu", coords=(x, y, 0), core_on_chip=core)
        for x in (0, 1)
        for y in (2, 3)
        for core in (0, 1)
    ]
    assert topology_from_devices(chips) == get_topology("tpu7x:2x2x1")
    with pytest.raises(TopologyError, match="got 7 of tpu7x that do not fill a box"):
        topology_from_devices(chips[:-1])


def test_local_gpus_are_grouped_by_process():
    kind = "NVIDIA H100 80GB HBM3"
    gpus = [device(kind, "gpu", process_index=index // 8) for index in range(16)]
    assert topology_from_devices(gpus) == get_topology("2x8xh100")
    with pytest.raises(TopologyError, match="GPUs by process"):
        topology_from_devices(gpus[:-1])


@pytest.mark.parametrize("gpu", [device.name for device in GPUS])
def test_local_gpus_of_the_catalogue_are_recognized(gpu):
    """By the name that CUDA gives them, as XLA's compiler is told it."""
    unknown_to_the_compiler = {"k80": "Tesla K80", "gb300": "NVIDIA GB300"}
    kind = unknown_to_the_compiler.get(gpu) or GPU_TARGETS[gpu].description
    assert topology_from_devices([device(kind, "gpu", process_index=0)]).device.name == gpu


def test_local_unknown_kinds_are_refused():
    with pytest.raises(TopologyError, match=r"kind 'NVIDIA T4'; allowed kinds: TPU v4.*A100"):
        topology_from_devices([device("NVIDIA T4", "gpu", process_index=0)])
    with pytest.raises(TopologyError, match="devices of one kind"):
        topology_from_devices([device("TPU v4", "tpu"), device("TPU v5", "tpu")])
