"""The greatest count, exactly: an integer programme by HiGHS.

maximise  sum w_i x_i                 x_i in {0, 1}, 0 where i cannot be split
with      x_i + x_j <= 1              for i, j that contradict each other
          x_i - x_j  = 0              for i, j that are linked
"""

from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from automap.search.counts.choices import Choices


def optimum(choices: Choices) -> np.ndarray:
    """A plan [n] bool of the greatest count."""
    upper: Any = choices.allowed.astype(float)  # scipy's stubs know numbers only
    found = milp(
        -choices.weights.astype(float),
        integrality=np.ones(len(choices)),
        bounds=Bounds(0.0, upper),
        constraints=[
            _on_pairs(choices.conflicts, second=1.0, low=-np.inf, high=1.0),
            _on_pairs(choices.linked, second=-1.0, low=0.0, high=0.0),
        ],
    )
    return found.x > 0.5


def _on_pairs(pairs: np.ndarray, *, second: float, low: float, high: float) -> LinearConstraint:
    """low <= x_i + second x_j <= high for every pair i < j; 0 = 0 where there is none."""
    i, j = np.nonzero(np.triu(pairs))
    row = np.arange(len(i))
    entries = np.concatenate([np.ones(len(i)), np.full(len(j), second)])
    places = np.concatenate([row, row]), np.concatenate([i, j])
    matrix = csr_array((entries, places), shape=(max(len(i), 1), len(pairs)))
    return LinearConstraint(matrix, low, high) if len(i) else LinearConstraint(matrix, 0.0, 0.0)
