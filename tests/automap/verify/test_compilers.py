"""Which compiler serves which topology, and how GPUs are described to theirs."""

import dataclasses
import re

import pytest

from automap.errors import CompilerError
from automap.topology import get_topology
from automap.topology.devices import DEVICES
from automap.topology.gpu_devices import GPUS
from automap.verify import compilers
from automap.verify.compilers import COMPILERS, machine_for
from automap.verify.gpu_targets import GPU_TARGETS, gpu_target


@pytest.mark.parametrize(
    ("compiler", "topology", "kind", "grid", "count"),
    [
        ("cpu", "cpu:8", "", "", 8),
        ("cpu", "v5e:4x4", "", "", 16),
        ("tpu", "v5e:4x4", "v5e:4x4", "", 16),
        ("tpu", "v5p:2x2x2", "v5p:2x2x2", "", 8),
        ("gpu", "8xh100", "h100", "1x1x8", 8),
        ("gpu", "2x8xv100", "v100", "1x2x8", 16),
        ("gpu", "1xa100", "a100", "1x1x1", 1),
        ("gpu", "4x1xh200", "h200", "1x4x1", 4),
    ],
)
def test_a_topology_names_its_machine(compiler, topology, kind, grid, count):
    machine = machine_for(compiler, get_topology(topology))
    assert (machine.kind, machine.grid, machine.device_count) == (kind, grid, count)
    told = get_topology(topology).device.memory_bytes if compiler == "gpu" else 0
    assert machine.memory_bytes == told


@pytest.mark.parametrize(
    ("compiler", "topology", "match"),
    [
        ("tpu", "8xh100", "cannot compile for 8xh100 .cuda.; allowed: gpu or cpu"),
        ("gpu", "cpu:8", "allowed: cpu$"),
        ("cpu", "cpu:1024", "at most 512 fake"),
    ],
)
def test_other_machines_are_refused_with_what_is_allowed(compiler, topology, match):
    with pytest.raises(CompilerError, match=match):
        machine_for(compiler, get_topology(topology))


def test_machines_that_cannot_be_described_are_refused_with_the_valid_names():
    h100 = get_topology("8xh100")
    strange = dataclasses.replace(h100, device=dataclasses.replace(h100.device, name="x1"))
    with pytest.raises(CompilerError, match="got 'x1'; allowed: p100, .*h100"):
        machine_for("gpu", strange)
    with pytest.raises(CompilerError, match="knows slices by name; got topology 'mine'"):
        machine_for("tpu", dataclasses.replace(get_topology("v5e:2x4"), name="mine"))


def test_a_missing_compiler_says_which_extra_to_install(monkeypatch):
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    with pytest.raises(CompilerError, match=r"pip install 'jax-automap\[tpu\]'"):
        COMPILERS["tpu"].check_installed()
    with pytest.raises(CompilerError, match=r"jax-automap\[gpu-compiler\]"):
        COMPILERS["gpu"].check_installed()


def test_versions_name_every_package():
    names = [name for name, _ in COMPILERS["cpu"].versions()]
    assert names == ["jax-automap", "jax", "jaxlib"]


@pytest.mark.parametrize("name", GPU_TARGETS)
def test_a_target_is_the_catalogues_device(name):
    target = gpu_target(name)
    if name in DEVICES:
        device = DEVICES[name]
        assert target.memory_bytes == pytest.approx(device.memory_bytes, rel=0.08)
        assert target.memory_bytes_per_s == pytest.approx(device.hbm_bytes_per_s, rel=0.05)
    text = target.text(8 * 10**9)
    assert text.count("{") == text.count("}")
    assert re.search(rf"core_count: {target.sm_count}\n", text)
    # XLA takes four fifths of it.
    assert "device_memory_size: 10000000000\n" in text


def test_every_gpu_of_the_catalogue_has_a_target_but_the_one_that_cuda_has_dropped():
    assert {gpu.name for gpu in GPUS} - GPU_TARGETS.keys() == {"k80", "gb300"}
    with pytest.raises(CompilerError, match="got 'k80'; allowed: p100, .*--compiler cpu"):
        machine_for("gpu", get_topology("4xk80"))
