"""Greedy plans, what a partial plan reaches greedily, and second thoughts.

While decisions are made, two marks follow from those before:
    blocked     splitting would contradict one of them: keep whole
    forced      it is linked to one that is split: split
After i is split, what conflicts with i is blocked and what is linked to i forced; after it is kept
whole, what is linked to i is blocked                                 -> in: `_complete`

greedy            split whatever is not blocked, in order                       -> in: `greedy`
second thoughts   the paper's second stage goes back over what was kept whole: split it after all,
                  give up what contradicts it, go on greedily, and keep that if it counts more
                                                                      -> in: `reconsidered`

The greatest count, exactly, is an integer programme by HiGHS                   -> in: `optimum`

    maximise  sum w_i x_i                 x_i in {0, 1}, 0 where i cannot be split
    with      x_i + x_j <= 1              for i, j that contradict each other
              x_i - x_j  = 0              for i, j that are linked
"""

from typing import Any

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
from scipy.sparse import csr_array

from automap.milp import milp
from automap.numba_jit import compiled
from automap.search.counts.choices import Choices


@compiled
def _complete(
    conflicts: Any, linked: Any, first: Any, blocked: Any, forced: Any, split: Any
) -> None:
    """Decide row r's decisions `first[r]` onwards greedily, into `split` [rows, n]; changes the
    marks.
    """
    n = len(conflicts)
    for r in range(len(first)):
        for i in range(first[r], n):
            split[r, i] = forced[r, i] or not blocked[r, i]
            # Only what is still to be decided is marked: what was decided before stands.
            for j in range(i + 1, n):
                if split[r, i]:
                    blocked[r, j] |= conflicts[i, j]
                    forced[r, j] |= linked[i, j]
                else:
                    blocked[r, j] |= linked[i, j]


def completed(
    choices: Choices, first: np.ndarray, blocked: np.ndarray, forced: np.ndarray
) -> np.ndarray:
    """What each row splits of its decisions `first[r]` onwards, bool [rows, n]; False before.

    `blocked`, `forced` [rows, n] are the marks that the decisions before have left.
    """
    split = np.zeros(blocked.shape, np.bool_)
    _complete(choices.conflicts, choices.linked, first, blocked.copy(), forced.copy(), split)
    return split


def greedy(choices: Choices) -> np.ndarray:
    """The plan [n] bool that splits whatever it can, in order."""
    blocked = ~choices.allowed[None]
    return completed(choices, np.zeros(1, np.int64), blocked, np.zeros_like(blocked))[0]


def reconsidered(choices: Choices, split: np.ndarray) -> np.ndarray:
    """A plan [n] bool that counts at least as much as `split`, and more if a decision was wrong."""
    best, improved = split, True
    while improved:
        improved = False
        # The largest first; after an improvement from the beginning, as what was given up may come
        # back.
        whole = np.flatnonzero(~best & choices.allowed)
        for i in whole[np.argsort(-choices.weights[whole], kind="stable")]:
            changed = _split_after_all(choices, best, int(i))
            if choices.count(changed) > choices.count(best):
                best, improved = changed, True
                break
    return best


def _split_after_all(choices: Choices, split: np.ndarray, i: int) -> np.ndarray:
    # Decisions that are linked are split or given up together.
    chosen = choices.linked[i].copy()
    chosen[i] = True
    given_up = choices.conflicts[chosen].any(0)
    given_up |= choices.linked[given_up].any(0)
    kept = (split & ~given_up) | chosen
    # Linked decisions stand or fall together, so what is not blocked has no partner that is.
    blocked = ~choices.allowed | choices.conflicts[kept].any(0)
    blocked |= choices.linked[blocked].any(0)
    return completed(choices, np.zeros(1, np.int64), blocked[None], kept[None])[0]


def optimum(choices: Choices) -> np.ndarray:
    """A plan [n] bool of the greatest count."""
    upper: Any = choices.allowed.astype(float)  # scipy's stubs know numbers only
    solution = milp(
        # `milp` minimises.
        -choices.weights.astype(float),
        integrality=np.ones(len(choices)),
        bounds=scipy.optimize.Bounds(0.0, upper),
        constraints=[
            _on_pairs(choices.conflicts, second=1.0, low=-np.inf, high=1.0),
            _on_pairs(choices.linked, second=-1.0, low=0.0, high=0.0),
        ],
    )
    return solution.x > 0.5


def _on_pairs(
    pairs: np.ndarray, *, second: float, low: float, high: float
) -> "scipy.optimize.LinearConstraint":
    """low <= x_i + second x_j <= high for every pair i < j; 0 = 0 where there is none."""
    i, j = np.nonzero(np.triu(pairs))
    row = np.arange(len(i))
    entries = np.concatenate([np.ones(len(i)), np.full(len(j), second)])
    places = np.concatenate([row, row]), np.concatenate([i, j])
    matrix = csr_array((entries, places), shape=(max(len(i), 1), len(pairs)))
    low, high = (low, high) if len(i) else (0.0, 0.0)
    return scipy.optimize.LinearConstraint(matrix, low, high)
