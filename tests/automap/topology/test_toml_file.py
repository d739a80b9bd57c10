"""TOML topologies: the documented example parses, bad files are refused with a path."""

import pytest

from automap.errors import TopologyError
from automap.topology import get_topology, parse_topology, toml_file


EXAMPLE = "\n".join(
    line[4:] for line in (toml_file.__doc__ or "").splitlines() if line.startswith("    ")
)


def with_own_device(text):
    """The documented example with its commented device table instead of the name."""
    body = text.replace('device = "h100"', "").splitlines()
    table = [line[2:] for line in body if line.startswith("# ")]
    rest = [line for line in body if not line.startswith("# ")]
    return "\n".join([*rest, *table])


def test_documented_example():
    topology = parse_topology(EXAMPLE)
    assert topology.device == get_topology("8xh100").device
    assert [(level.size, level.shared_by) for level in topology.levels] == [(4, 1), (2, 4)]


def test_documented_device_table():
    device = parse_topology(with_own_device(EXAMPLE)).device
    assert device.name == "my-gpu"
    assert device.peak_flops_per_s("f16") == 181e12


def test_a_path_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(EXAMPLE)
    assert get_topology(str(path)) == parse_topology(EXAMPLE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"h100"', '"b200"', "device: got 'b200'; allowed: a table, or one of v4, v5e"),
        ("size = 4 ", "size = 1 ", r"levels\[0\]\.size: got 1"),
        ('kind = "switch"', 'kind = "tree"', r"levels\[0\]\.kind: got 'tree'"),
        ("bytes_per_s = 12.5e9", "bytes_per_s = nan", r"levels\[1\]\.bytes_per_s: got nan"),
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
        (b"#" * (2**20 + 1), "over 1048576 bytes"),
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
    with pytest.raises(TopologyError, match="Is a directory"):
        get_topology(str(tmp_path))
