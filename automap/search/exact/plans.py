"""What plans cost in the terms that bounds are made of, asked of the evaluator.

seconds [features]     of a step, of each kernel, operand edge and result edge
excess [positions]     bytes alive over the memory limit, or less, as fractions of it
"""

from dataclasses import dataclass

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.search.factored.model import Features
from automap.space.point import SplitClasses


@dataclass(frozen=True)
class Costs:
    """One plan; `seconds` has an entry per feature of seconds, `excess` one per position of the
    schedule.
    """

    seconds: np.ndarray
    excess: np.ndarray


def costs(
    evaluator: Evaluator, features: Features, split_classes: SplitClasses, limit_bytes: float
) -> Costs:
    """Of a plan."""
    priced, tables = evaluator.priced(split_classes), evaluator.tables
    found = priced.found
    each = priced.of_collective * found.count
    seconds = np.zeros(features.value_rows)
    seconds[: features.operands] = priced.of_kernel * tables.kernels.count
    first = np.where(found.on_operand, features.operands, features.results)
    np.add.at(seconds, first + found.edge, each)
    kept = found.copied[tables.operands.repeats[:, 1]] * found.is_repeat
    live = evaluator.profile.live(priced.sharding.parts_of_value, found.copied, kept)
    return Costs(seconds, live / limit_bytes - 1)
