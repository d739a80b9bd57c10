"""TOML topologies: the documented example parses, bad files are refused with a path."""

import pytest

from automap.errors import TopologyError
from automap.topology import get_graph, get_machine, get_topology, parse_machine, toml_file


EXAMPLE = "\n".join(
    line[4:] for line in (toml_file.__doc__ or "").splitlines() if line.startswith("    ")
)


GRAPH = "\n".join(
    line[4:] for line in (toml_file.__doc__ or "").splitlines() if line.startswith("  |")
)


def with_own_device(text):
    """The documented example with its commented device table instead of the name."""
    body = text.replace('device = "h100"', "").splitlines()
    table = [line[2:] for line in body if line.startswith("# ")]
    rest = [line for line in body if not line.startswith("# ")]
    return "\n".join([*rest, *table])


def test_documented_example():
    topology = parse_machine(EXAMPLE)
    assert topology.device == get_topology("8xh100").device
    assert [(level.size, level.shared_by) for level in topology.levels] == [(4, 1), (2, 4)]


def test_documented_device_table():
    device = parse_machine(with_own_device(EXAMPLE)).device
    assert device.name == "my-gpu"
    assert device.peak_flops_per_s("f16") == 181e12


def test_a_path_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(EXAMPLE)
    assert get_topology(str(path)) == parse_machine(EXAMPLE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"h100"', '"b300"', "device: got 'b300'; allowed: a table, or one of v4, v5e"),
        ("size = 4 ", "size = 1 ", r"levels\[0\]\.size: got 1"),
        ('kind = "switch"', 'kind = "tree"', r"levels\[0\]\.kind: got 'tree'"),
        ("bytes_per_s = 12.5e9", "bytes_per_s = nan", r"levels\[1\]\.bytes_per_s: got nan"),
        (
            '"network"                #',
            '"air" #',
            r"levels\[1\]\.reach: got 'air'; allowed: host \| net",
        ),
        ("shared_by", "sharedby", r"levels\[1\]\.sharedby: unknown field; .*shared_by"),
        ('platform = "cuda"', "", "platform: missing"),
        ("[[levels]]", "[[levels", "no valid TOML: .*line"),
    ],
)
def test_refused_files(tmp_path, old, new, message):
    assert old in EXAMPLE
    path = tmp_path / "bad.toml"
    path.write_text(EXAMPLE.replace(old, new))
    with pytest.raises(TopologyError, match=rf"topology file '.*bad\.toml': {message}"):
        get_topology(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "no valid TOML"),
        (b"a = " + b"[" * 100_000, "no valid TOML"),
        (b"#" * (2**20 + 1), "allowed: 1048576 bytes"),
        (b"", "name: missing"),
    ],
)
def test_refused_bytes(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(TopologyError, match=message):
        get_topology(str(path))


def test_unreadable_files(tmp_path):
    with pytest.raises(TopologyError, match="No such file.*or a name as v5e:4x4"):
        get_topology(str(tmp_path / "none.toml"))
    with pytest.raises(TopologyError, match="is a folder; allowed: a regular file"):
        get_topology(str(tmp_path))


def test_documented_graph(tmp_path):
    path = tmp_path / "desk.toml"
    path.write_text(GRAPH)
    graph = get_graph(str(path))
    assert graph == get_machine(str(path)) == parse_machine(GRAPH)
    assert [(node.name, node.device.name) for node in graph.devices] == [
        ("cpu", "haswell"),
        ("gpu", "2080ti"),
    ]
    with pytest.raises(TopologyError, match="no mesh lies on"):
        get_topology(str(path))


def test_a_graph_may_define_its_own_kinds():
    table = "[kinds.haswell]\n" + "\n".join(
        line for line in with_own_device(EXAMPLE).splitlines()[-8:] if "[device]" not in line
    )
    graph = parse_machine(GRAPH + "\n" + table)
    assert graph.devices[0].device.name == "my-gpu"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'device = "2080ti"',
            'device = "3080"',
            r"devices\[1\]\.device: got '3080'; .*of the catalogue",
        ),
        ('device = "2080ti"', "device = [1]", r"devices\[1\]\.device: got \[1\]"),
        ('name = "gpu"', 'name = "cpu"', "devices and hubs: got 'cpu'; .*used once"),
        ('name = "slot"', 'name = "memory bus"', "links: got 'memory bus'; .*used once"),
        (
            '"gpu", "root"]',
            '"gpu", "rot"]',
            r"links\[1\]\.ends: got 'rot'; allowed: .*cpu, gpu, root",
        ),
        ('"gpu", "root"]', '"gpu", "gpu"]', r"links\[1\]\.ends: got \['gpu', 'gpu'\]"),
        ('"gpu", "root"]', '"gpu"]', r"links\[1\]\.ends: got \['gpu'\]"),
        ('"gpu", "root"]', '"gpu", 3]', r"links\[1\]\.ends: got 3"),
        ("bytes_per_s = 12e9", "bytes_per_s = nan", r"links\[1\]\.bytes_per_s: got nan"),
        ("latency_seconds = 5e-6", "latency_seconds = -1", r"links\[1\]\.latency_seconds: got -1"),
        ("latency_seconds = 5e-6", "", r"links\[1\]\.latency_seconds: missing"),
        ('hubs = ["root"] ', "hubs = [7] ", "hubs: got 7"),
        ('hubs = ["root"] ', 'hubs = "root" ', "hubs: got 'root'; allowed: a list"),
        ("host = 0 ", "host = -1 ", r"devices\[0\]\.host: got -1"),
        ('name = "desk"', 'name = "desk"\nkinds = 3', "kinds: got 3; allowed: a table"),
        ('name = "desk"', 'name = "desk"\nlevels = []', "levels: unknown field"),
        ('ends = ["gpu", "root"]', 'ends = ["cpu", "root"]', "no way from 'cpu' to 'gpu'"),
        ("# medium =", "medium =", None),
    ],
)
def test_refused_graphs(old, new, message):
    assert old in GRAPH
    text = GRAPH.replace(old, new)
    if message is None:
        assert parse_machine(text)
        return
    with pytest.raises(TopologyError, match=message):
        parse_machine(text)


def test_links_of_a_medium_have_one_rate():
    text = GRAPH.replace("12e9", "12e9\nmedium = 'bus'").replace("60e9 ", "60e9\nmedium = 'bus' ")
    with pytest.raises(
        TopologyError, match=r"links\[1\]\.bytes_per_s: got .*every link of the medium 'bus'"
    ):
        parse_machine(text)


def test_huge_counts_are_refused():
    rows = "".join(f'[[devices]]\nname = "d{i}"\ndevice = "k80"\n' for i in range(513))
    with pytest.raises(TopologyError, match="devices: got 513; allowed: at most 512"):
        parse_machine(f'name = "x"\nplatform = "cuda"\nlinks = []\n{rows}')


def test_a_link_so_slow_that_no_route_takes_it_is_refused():
    slow = GRAPH.replace("bytes_per_s = 60e9", "bytes_per_s = 1e-320")
    assert slow != GRAPH
    with pytest.raises(
        TopologyError, match="bytes_per_s: got 1e-320; allowed: a finite number > 0"
    ):
        parse_machine(slow)
