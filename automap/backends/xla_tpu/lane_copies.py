"""Copies beside collectives along the last dimension, as memory holds tiles of 128 numbers side by
side.

all-gather   parts of whole tiles are gathered where they belong; others one after the other, and
             then copied into their places (columns of DLRM's tables: 0.65 ms of a step on
             v5p:2x2x4)
all-to-all   what is exchanged stands apart, so that what moves from the last dimension, or to it,
             is copied before or after (a recurrent network's states, 1.3 us in each trip; tokens of
             experts move between other dimensions)

What is copied is read and written once more, at the speed of copies (libtpu 0.0.51)
                                                                -> in: `LaneCopyEffect.seconds`
"""

from typing import Final

import numpy as np

from automap.backends.effects import CollectiveWork


_LANES: Final = 128


class LaneCopyEffect:
    """All-gathers and all-to-alls along the last dimension."""

    def seconds(self, work: CollectiveWork) -> np.ndarray:
        """Of the copy beside each collective, 0 where there is none; [entries]."""
        copied_bytes = np.zeros(len(work.n_bytes))
        moved = np.flatnonzero(work.is_gather | work.is_exchange)
        axes = work.takes_part[moved]
        stored, computed = work.splits_stored[moved], work.splits_computed[moved]
        # An operand is gathered from how it is stored, a result from how it is computed.
        gathered = np.where(work.on_operand[moved, None], stored, computed)
        part = work.last_size[moved] / np.where(gathered, work.sizes, 1).prod(axis=1)
        is_copied = np.where(
            work.is_gather[moved],
            (gathered & axes).any(axis=1) & (part % _LANES != 0),
            ((stored | computed) & axes).any(axis=1),
        )
        # Read once and written once.
        copied_bytes[moved] = np.where(is_copied, 2 * work.n_bytes[moved], 0.0)
        seconds = copied_bytes / work.device.memory_bytes_per_s("copy")
        return np.where(copied_bytes > 0, np.maximum(seconds, work.device.launch_seconds), 0.0)
