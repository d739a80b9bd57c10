"""A term of a sum over decisions."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Table:
    """Numbers over the choices of a scope's variables; the scope is sorted."""

    scope: tuple[int, ...]
    values: np.ndarray
