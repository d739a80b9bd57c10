"""What a compiler's scheduler believes of collectives, where it has a table of its own.

XLA:GPU's scheduler of Hopper and later reads the seconds of a collective among up to eight devices,
on one host or on several, from a table that was measured on a host of eight, by kind, devices of a
group, and powers of two of bytes:

    seconds = bytes / bytes_p * seconds_p,   p the power whose bytes are nearest

so that less than the least bytes of the table are believed to take a part of its first entry, which
are as long as those of a hundred times as many bytes. Of larger groups it has a formula, seconds
that grow evenly with the bytes, among sixteen from 82 to 341 us on: between two powers of two they
are read from a line. The file has groups that fill their hosts; of sixteen on four hosts sums begin
at 175 us in place of 184 and grow nearly twice as fast (asked by hand, jax 0.10.2). XLA hides a
collective behind as many kernels as it believes that it takes.
                    collective_interpolator.cc, interpolator.h, sol_latency_estimator.cc of XLA
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
import tomllib

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedSeconds:
    """`seconds` [kinds x sizes of groups, powers] of 2^`least_power` bytes and twice as many each;
    `kinds` and `sizes` (devices of a group) number the rows. Those of up to `measured_size` devices
    are of a table, others of a formula.
    """

    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    measured_size: int
    least_power: int
    seconds: np.ndarray

    def rows(self, kinds: Sequence[str], kind: np.ndarray, n_devices: np.ndarray) -> np.ndarray:
        """The row of each collective, `kinds[kind]` over so many devices; -1 if there is none."""
        place = np.array([self.kinds.index(k) if k in self.kinds else -1 for k in kinds])[kind]
        size = np.searchsorted(self.sizes, n_devices)
        is_there = (place >= 0) & (n_devices > 1) & (size < len(self.sizes))
        return np.where(is_there, place * len(self.sizes) + size, -1)

    def lookup(self, row: np.ndarray, n_bytes: np.ndarray) -> np.ndarray:
        """What collectives of so many bytes are believed to take, by their rows."""
        is_measured = np.array(self.sizes)[row % len(self.sizes)] <= self.measured_size
        last, powers = self.seconds.shape[1] - 1, np.log2(np.maximum(n_bytes, 1.0))
        # From 1.5 of a power on the next one is nearer.
        near = np.floor(powers - np.log2(1.5)) + 1 - self.least_power
        near = np.clip(near, 0, last).astype(np.int64)
        measured = self.seconds[row, near] * n_bytes / 2.0 ** (near + self.least_power)
        below = np.clip(np.floor(powers) - self.least_power, 0, last - 1).astype(np.int64)
        part = n_bytes / 2.0 ** (below + self.least_power) - 1
        first, second = self.seconds[row, below], self.seconds[row, below + 1]
        return np.where(is_measured, measured, first + part * (second - first))


@cache
def believed_seconds(folder: str, file: str) -> Mapping[str, BelievedSeconds]:
    """The tables of a data file of a backend, by the names of the devices that they are for."""
    resource = files("automap.backends") / folder / file
    tables = {}
    for table in tomllib.loads(resource.read_text(encoding="utf-8"))["table"]:
        kinds, sizes = tuple(table["microseconds"]), tuple(table["devices_of_a_group"])
        rows = np.array([row for kind in kinds for row in table["microseconds"][kind]]) * 1e-6
        believed = BelievedSeconds(
            kinds=kinds,
            sizes=sizes,
            measured_size=table["measured_devices"],
            least_power=table["least_power_of_two"],
            seconds=rows,
        )
        tables |= dict.fromkeys(table["devices"], believed)
    return tables
