"""Evolution strategies (Salimans et al. 2017): weights learn from what whole games bring, without a
gradient of it.

    slope = sum over pairs of (gain(w + s e) - gain(w - s e)) e           e: normal noise
    w <- w + step s slope / rms(slope)                                    s: `sigma` of the spread
                                                                             of each array
Opposite changes of a pair take what is common to both out of the difference.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


Weights = dict[str, np.ndarray]
# Of an array whose numbers are all the same, as one that begins at zero.
_LEAST_SPREAD = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """How weights are changed.

    Attributes:
        names: the arrays that are changed; all others stay.
        sigma: size of a change, in parts of an array's standard deviation.
        pairs: opposite changes tried in a step.
        step: size of a step, in parts of a change.
    """

    names: tuple[str, ...]
    sigma: float
    pairs: int
    step: float


def evolved(
    weights: Weights,
    gain: Callable[[Weights], float],
    evolution: Evolution,
    source: np.random.Generator,
) -> Weights:
    """Weights after one step; `gain` says what weights bring, more being better."""
    names = evolution.names
    units = {
        name: evolution.sigma * max(float(weights[name].std()), _LEAST_SPREAD) for name in names
    }

    def moved(by: Weights, rate: float) -> Weights:
        changed = {n: (weights[n] + rate * units[n] * by[n]).astype(np.float32) for n in names}
        return {**weights, **changed}

    slopes = {name: np.zeros(weights[name].shape) for name in names}
    for _ in range(evolution.pairs):
        noise = {name: source.standard_normal(weights[name].shape) for name in names}
        better = gain(moved(noise, 1.0)) - gain(moved(noise, -1.0))
        for name in names:
            slopes[name] += better * noise[name]
    squares = np.concatenate([slope.ravel() ** 2 for slope in slopes.values()])
    # Where every change brings the same there is no way to go.
    if not squares.any():
        return dict(weights)
    return moved(slopes, evolution.step / float(np.sqrt(squares.mean())))
