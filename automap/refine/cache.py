"""What compilers said of kernels, kept in the user's cache folder for later searches.

    key = SHA-256 of (device, versions of the compiler and of this package, the compiler's flags and
                      options)                                          -> in: `prices_path`

A folder holds <device>-<key>.json beside the witnesses: JSON that is read with checks and runs
nothing. It is written whole or not at all; one that cannot be used is ignored with a warning and
written over. Of a kernel in several workloads the newest price is kept; the ratio of kernels that
are no contractions is that of one workload, and is not.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final
import warnings

from automap.atomic_file import reason, write_atomically
from automap.cost.profile import KernelPrices
from automap.errors import CacheWarning, PlanError
from automap.plan import codec
from automap.plan.checks import check_version, refuse
from automap.plan.file import layout, read
from automap.topology.model import Topology
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS, compile_options, machine_for
from automap.verify.process import compiler_flags


FORMAT: Final = "automap-prices"
VERSION: Final = 1
MOST_KERNELS: Final = 10_000
"""Of each list of a file, the newest ones: a large workload has some hundred."""


def prices_path(folder: Path, topology: Topology) -> Path:
    """The file of a topology's device in a folder of witnesses."""
    name = COMPILER_BY_PLATFORM[topology.platform]
    parts = {
        "device": topology.device.name,
        "versions": codec.encode(COMPILERS[name].versions()),
        "flags": codec.encode(compiler_flags()),
        "options": compile_options(machine_for(name, topology)),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return folder / "prices" / f"{topology.device.name}-{key[:32]}.json"


def load_prices(path: Path) -> KernelPrices:
    """The prices that are kept; none, with a `CacheWarning` if there is a file that is not one."""
    if not path.is_file():
        return KernelPrices()
    try:
        return _parse(read(path))
    except PlanError as error:
        warnings.warn(
            f"prices of kernels are not used, and written anew: {str(path)!r}: {error}",
            CacheWarning,
            stacklevel=2,
        )
        return KernelPrices()


def save_prices(path: Path, prices: KernelPrices) -> None:
    """Keep prices of kernels; a `CacheWarning` if that cannot be done."""
    kept = KernelPrices(
        dots=prices.dots[-MOST_KERNELS:], convolutions=prices.convolutions[-MOST_KERNELS:]
    )
    table = {"format": FORMAT, "version": VERSION, **codec.encode(kept)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, layout(table), links="replace")
    except (PlanError, OSError) as error:
        warnings.warn(
            f"what the compiler says of kernels is not kept in {str(path)!r}: {reason(error)}; "
            "give another --cache-dir, or --no-cache",
            CacheWarning,
            stacklevel=2,
        )


def _parse(node: Any) -> KernelPrices:
    if not isinstance(node, dict) or node.get("format") != FORMAT:
        raise refuse("format", node, f'an object with "format": "{FORMAT}"')
    check_version(node.get("version"), VERSION, "delete the file")
    fields = {key: node[key] for key in node if key not in ("format", "version")}
    return codec.decode(KernelPrices, fields, "")
