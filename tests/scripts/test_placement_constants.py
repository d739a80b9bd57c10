"""Numbers that are changed: in all devices and links that have them, and in the walks' code."""

from pathlib import Path

from automap.placement import strategies
from automap.topology import get_graph
from scripts.placement_constants import (
    K80,
    Constant,
    changed_graph,
    changed_module,
    differences,
)


def test_a_number_changes_in_all_that_have_it_and_nowhere_else() -> None:
    known = get_graph("haswell-4xk80")
    other = changed_graph(known, K80["PCIe: rate"], 0.5)
    assert other.devices == known.devices
    changed = [a.name for a, b in zip(known.links, other.links, strict=True) if a != b]
    assert changed == [link.name for link in known.links if link.name.startswith("pcie")]
    assert differences(known.links, other.links) == ("1.2e+10", "assumption")


def test_a_share_is_one_at_most() -> None:
    known = get_graph("haswell-4xk80")
    other = changed_graph(known, Constant("k80", ["matmul_efficiency", "launch_seconds"]), 2.0)
    devices = zip(known.devices, other.devices, strict=True)
    a, b = next((a.device, b.device) for a, b in devices if a.device.name == "k80")
    assert b.matmul_efficiency == 1.0
    assert b.launch_seconds == 2.0 * a.launch_seconds


def test_a_copy_of_the_walks_has_another_number(tmp_path: Path) -> None:
    copy = changed_module("MOST_PROPOSALS", 0.5, tmp_path)
    assert copy.MOST_PROPOSALS * 2 == strategies.MOST_PROPOSALS
    assert copy.BETA == strategies.BETA
