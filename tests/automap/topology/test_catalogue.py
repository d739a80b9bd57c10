"""Names of topologies: what they mean, and what is refused with which words."""

from types import SimpleNamespace

import pytest

from automap.errors import TopologyError
from automap.topology import catalogue, get_topology, topology_of


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
        ("8xb200", "allowed GPUs: v100, v100-32gb, a100, h100, h200; .*TOML file"),
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
    entries = catalogue()
    assert len({entry.pattern for entry in entries}) == len(entries)
    for entry in entries:
        topology = get_topology(entry.example)
        assert (topology.device, topology.levels) == (entry.device, entry.levels)
        spoken_of = {name for source in entry.device.source for name in source.field.split(", ")}
        assert spoken_of >= {"matmul_efficiency", "hbm_bytes_per_s"} or spoken_of == {"all"}
        assert all(level.source for level in entry.levels)


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
    assert topology_of(chips) == get_topology("tpu7x:2x2x1")
    with pytest.raises(TopologyError, match="got 7 of tpu7x that do not fill a box"):
        topology_of(chips[:-1])


def test_local_gpus_are_grouped_by_process():
    kind = "NVIDIA H100 80GB HBM3"
    gpus = [device(kind, "gpu", process_index=index // 8) for index in range(16)]
    assert topology_of(gpus) == get_topology("2x8xh100")
    with pytest.raises(TopologyError, match="GPUs by process"):
        topology_of(gpus[:-1])


def test_local_unknown_kinds_are_refused():
    with pytest.raises(TopologyError, match=r"kind 'NVIDIA T4'; allowed kinds: TPU v4.*A100"):
        topology_of([device("NVIDIA T4", "gpu", process_index=0)])
    with pytest.raises(TopologyError, match="devices of one kind"):
        topology_of([device("TPU v4", "tpu"), device("TPU v5", "tpu")])
