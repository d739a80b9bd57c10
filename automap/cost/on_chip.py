"""The memory on a TPU's chip, beside the arithmetic: what a compiler keeps there is not in the
device's memory, and moves no bytes to it.

    off(b)      = log2(b / (k C)) / log2(l / k), within 0 and 1    -> in: `off_chip`
    kept(p)     = crowded(p) min(r C, sum of b (1 - off(b)) over what is alive at p, and neither an
                  input nor a result)                           -> in: `ChipRoom.kept_bytes`
    crowded(p)  = log2(h C / live(p)) / log2(h / g), within 0 and 1

    b       bytes of an array on a device
    C       bytes of the memory on the chip
    k, l    `kept_share` and `spilled_share`: from all of an array to nothing of it
    r       `chip_room`: what is left to arrays beside what kernels need themselves
    g, h    `chip_crowded`: where a step holds more, less of the room is left to what lives until
            then, as it serves what is read sooner, or gets what is fetched ahead
    p       a position of the schedule, where live(p) bytes are on a device and its chip

What is kept is the compiler's choice, so whether a plan fits never depends on it: only what is
expected of the compiler does.
"""

from dataclasses import dataclass

import numpy as np

from automap.backends import TileNumbers
from automap.topology.model import Device


def off_chip(share: np.ndarray, numbers: TileNumbers) -> np.ndarray:
    """The part of an array that is in the device's memory, by the share of the chip's that it
    takes.
    """
    stays, leaves = numbers.kept_share, numbers.spilled_share
    # 0 at `stays` and 1 at `leaves`, linear in the logarithm of the share.
    doublings = np.log2(np.maximum(share, stays) / stays) / np.log2(leaves / stays)
    return np.minimum(doublings, 1.0)


@dataclass(frozen=True, slots=True)
class ChipRoom:
    """The room that temporaries have on the chip of a device."""

    capacity_bytes: int
    numbers: TileNumbers

    def kept_bytes(self, live: np.ndarray, may_stay: np.ndarray) -> np.ndarray:
        """What is kept of the bytes that `may_stay` beside others that are `live`; [positions]."""
        least, most = self.numbers.chip_crowded
        share = np.maximum(live, 1.0) / self.capacity_bytes
        crowded = np.clip(np.log2(most / share) / np.log2(most / least), 0.0, 1.0)
        return crowded * np.minimum(may_stay, self.numbers.chip_room * self.capacity_bytes)

    def may_stay(self, n_bytes: np.ndarray) -> np.ndarray:
        """Of each array the bytes that may be on the chip."""
        return n_bytes * (1.0 - off_chip(n_bytes / self.capacity_bytes, self.numbers))


def chip_room(device: Device, numbers: TileNumbers) -> ChipRoom | None:
    """The room on the chip of a device; None where there is no memory."""
    return ChipRoom(device.on_chip_bytes, numbers) if device.on_chip_bytes else None
