"""How wrong predictions of plans are: the numbers of `--refine`'s Gaussian process, fitted.

    python -m scripts.fit_choices

With errors e = log (compiled / predicted) of the n plans of a step, K their covariance under
`shared`, `own`, `reach` and `alone` (`automap.refine.candidates`), the sum over steps of

    log p(e) = - 1/2 e K^-1 e - 1/2 log det K - n/2 log 2 pi            -> in: `log_likelihood`

is maximised (Rasmussen and Williams 2006, equation 2.30). Steps are those of
`scripts/data/compiled_plans.jsonl` that may be fitted on (`scripts.halves`).
"""

from collections.abc import Sequence
from dataclasses import astuple, replace
import math
from pathlib import Path
from typing import Final

import click
import jax
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from automap.refine.candidates import ErrorModel, ErrorScale
from scripts.compiled_plans import RECORDED, Replay, step_seconds, steps
from scripts.halves import is_held_out


_START: Final = ErrorScale(shared=0.3, own=0.1, reach=0.25, alone=0.02)


def error_model(replay: Replay) -> ErrorModel:
    """The errors of all plans of a step that fit, at the prices from before."""
    candidates = replay.priced()
    seconds = map(step_seconds, replay.step.plans)
    known = [
        (candidate.point, math.log(compiled / candidate.estimate.step_seconds))
        for candidate, compiled in zip(candidates.candidates, seconds, strict=True)
        if math.isfinite(compiled)
    ]
    return candidates.error_model(known, _START)


def log_likelihood(models: Sequence[ErrorModel], scale: ErrorScale) -> float:
    """Of all errors under a scale."""
    total = 0.0
    for model in models:
        factor = cho_factor(replace(model, scale=scale).among, lower=True)
        errors, n = model.errors, len(model.errors)
        log_det = 2 * np.log(np.diag(factor[0])).sum()
        total -= 0.5 * (errors @ cho_solve(factor, errors) + log_det + n * math.log(2 * math.pi))
    return total


def _scale(logs: np.ndarray) -> ErrorScale:
    shared, own, reach, alone = np.exp(logs).tolist()
    return ErrorScale(shared=shared, own=own, reach=reach, alone=alone)


def fitted(models: Sequence[ErrorModel]) -> ErrorScale:
    """The scale under which they are most likely."""

    def loss(logs: np.ndarray) -> float:
        return -log_likelihood(models, _scale(logs))

    start = np.log(astuple(_START))
    return _scale(minimize(loss, start, method="Nelder-Mead").x)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--data", type=click.Path(path_type=Path, dir_okay=False), default=RECORDED)
def main(data: Path) -> None:
    """Print the numbers for the backend's file."""
    jax.config.update("jax_platforms", "cpu")
    models = [
        error_model(Replay.begin(step)) for step in steps(data) if not is_held_out(step.target)
    ]
    click.echo(f"{len(models)} steps: {fitted(models)}")


if __name__ == "__main__":
    main()
