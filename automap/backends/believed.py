"""What a compiler's scheduler believes of collectives, where it has a table of its own.

XLA:GPU's scheduler of Hopper and later reads the seconds of a collective among up to eight devices
of one host from a table that was measured on a host of eight, by kind, devices of a group, and
powers of two of bytes:

    seconds = bytes / bytes_p * seconds_p,   p the power whose bytes are nearest

so that less than the least bytes of the table are believed to take a part of its first entry, which
are as long as those of a hundred times as many bytes. Of groups with devices of several hosts it
has a formula, seconds that grow evenly with the bytes: between two powers of two they are read from
a line. By it the fewer devices of each host a group has the longer it takes: a sum of eight devices
on two hosts 619 us at least, of all sixteen 184. Which hosts a group is on goes by the numbers of
its partitions, eight of which are taken to be a host, also where hosts have two or four devices
(`hosts_over`). XLA hides a collective behind as many kernels as it believes that it takes.
                    collective_interpolator.cc, interpolator.h, sol_latency_estimator.cc of XLA
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
import math
import tomllib

import numpy as np


_DEVICES_OF_A_HOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedSeconds:
    """`seconds` [kinds x groups, powers] of 2^`least_power` bytes and twice as many each; `kinds`
    and groups, of so many `devices` on so many `hosts` [groups], number the rows. Those of one host
    are of a table, others of a formula.
    """

    kinds: tuple[str, ...]
    devices: np.ndarray
    hosts: np.ndarray
    least_power: int
    seconds: np.ndarray

    def rows(
        self, kinds: Sequence[str], kind: np.ndarray, n_devices: np.ndarray, n_hosts: np.ndarray
    ) -> np.ndarray:
        """The row of each collective, `kinds[kind]` over so many devices on so many hosts, of the
        smallest group on as many that has them; -1 if there is none.
        """
        place = np.array([self.kinds.index(k) if k in self.kinds else -1 for k in kinds])[kind]
        fits = (self.devices >= n_devices[:, None]) & (self.hosts == n_hosts[:, None])
        group = np.where(fits, self.devices, np.inf).argmin(axis=1)
        is_there = (place >= 0) & (n_devices > 1) & fits.any(axis=1)
        return np.where(is_there, place * len(self.devices) + group, -1)

    def lookup(self, row: np.ndarray, n_bytes: np.ndarray) -> np.ndarray:
        """What collectives of so many bytes are believed to take, by their rows."""
        is_measured = self.hosts[row % len(self.hosts)] == 1
        last, powers = self.seconds.shape[1] - 1, np.log2(np.maximum(n_bytes, 1.0))
        # From 1.5 of a power on the next one is nearer.
        near = np.floor(powers - np.log2(1.5)) + 1 - self.least_power
        near = np.clip(near, 0, last).astype(np.int64)
        measured = self.seconds[row, near] * n_bytes / 2.0 ** (near + self.least_power)
        below = np.clip(np.floor(powers) - self.least_power, 0, last - 1).astype(np.int64)
        part = n_bytes / 2.0 ** (below + self.least_power) - 1
        first, second = self.seconds[row, below], self.seconds[row, below + 1]
        return np.where(is_measured, measured, first + part * (second - first))


def hosts_over(mask: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """On how many hosts XLA takes a group over the axes of each mask to be, [masks]: partitions are
    numbered row-major over a mesh of `sizes`, and eight in a row are a host.
    """
    return _hosts_by_mask(tuple(sizes))[mask]


@cache
def _hosts_by_mask(sizes: tuple[int, ...]) -> np.ndarray:
    partitions, hosts = np.arange(math.prod(sizes)).reshape(sizes), list[int]()
    for mask in range(1 << len(sizes)):
        # All groups of a mask are like that of partition 0.
        ends = (size if mask >> axis & 1 else 1 for axis, size in enumerate(sizes))
        group = partitions[tuple(map(slice, ends))]
        hosts.append(len(np.unique(group // _DEVICES_OF_A_HOST)))
    return np.array(hosts)


@cache
def believed_seconds(folder: str, file: str) -> Mapping[str, BelievedSeconds]:
    """The tables of a data file of a backend, by the names of the devices that they are for."""
    resource = files("automap.backends") / folder / file
    tables = {}
    for table in tomllib.loads(resource.read_text(encoding="utf-8"))["table"]:
        kinds = tuple(table["microseconds"])
        rows = np.array([row for kind in kinds for row in table["microseconds"][kind]]) * 1e-6
        devices, hosts = np.array(table["devices_on_hosts"]).T
        believed = BelievedSeconds(
            kinds=kinds,
            devices=devices,
            hosts=hosts,
            least_power=table["least_power_of_two"],
            seconds=rows,
        )
        tables |= dict.fromkeys(table["devices"], believed)
    return tables
