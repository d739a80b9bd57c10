"""A profile -> the hardware file: a topology in TOML, each number with its source."""

from dataclasses import replace
from datetime import date

import tomli_w

from automap.atomic_file import write_atomically
from automap.calibrate.fit import fit_device, fit_level
from automap.calibrate.grid import level_by_axis
from automap.calibrate.machine import Machine
from automap.cost.profile import KernelProfile
from automap.errors import CalibrationError, PlanError
from automap.topology.model import Source, Topology


_HEADER = """\
# A machine as `automap calibrate` measured it. Plan with it: automap plan TARGET --topology THIS_FILE
"""


def calibrated_topology(machine: Machine, profile: KernelProfile, today: date) -> Topology:
    """The machine with measured numbers; a level whose collectives were not measured keeps its
    nominal ones.

    Raises `CalibrationError` if too little was measured for a device.
    """
    how = Source(
        field="all",
        document="automap calibrate",
        note=f"measured {today}, jax {profile.jax_version}, {machine.device_kind}, "
        f"{len(machine.devices)} working at the same time",
    )
    nominal = replace(machine.topology, name=f"{len(machine.devices)}x{machine.device}, calibrated")
    level_by_axes = level_by_axis(nominal)
    levels = []
    for index, level in enumerate(nominal.levels):
        rows = [
            row
            for row in profile.transfers
            if level_by_axes.get((row.signature.sizes, row.signature.axis)) == index
        ]
        levels.append(replace(fit_level(nominal, index, rows), source=(how,)) if rows else level)
    device = fit_device(profile, memory_bytes=machine.memory_bytes, source=(how,))
    return replace(nominal, device=device, levels=tuple(levels))


def write_hardware(path: str, topology: Topology) -> None:
    """Write the TOML file, whole or not at all. Raises `CalibrationError` when it cannot be
    written.
    """
    try:
        write_atomically(path, _HEADER + tomli_w.dumps(topology.to_dict()))
    except PlanError as error:
        raise CalibrationError(f"hardware file {error}") from error
