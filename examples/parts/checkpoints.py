"""Checkpoints by Orbax: saved from however many devices there are, restored on as many as there
are now.
"""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """The checkpoints of a run in a folder; None keeps nothing."""

    def __init__(self, folder: str | None) -> None:
        """The folder is made if it is not there."""
        self._manager = None
        if folder is not None:
            # The newest is what a run goes on from; the one before it is there if that is damaged.
            keep = ocp.CheckpointManagerOptions(max_to_keep=2)
            self._manager = ocp.CheckpointManager(Path(folder).resolve(), options=keep)

    def restore(self, state: Any) -> tuple[int, Any]:
        """The number of the next step and its state, placed as `state` is; 0 and that without a
        checkpoint.
        """
        number = None if self._manager is None else self._manager.latest_step()
        if self._manager is None or number is None:
            return 0, state
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        return number, self._manager.restore(number, args=ocp.args.StandardRestore(like))

    def save(self, number: int, state: Any) -> None:
        """Keep the state before step `number`."""
        if self._manager is not None:
            self._manager.save(number, args=ocp.args.StandardSave(state))

    def close(self) -> None:
        """Wait until everything is written."""
        if self._manager is not None:
            self._manager.close()
