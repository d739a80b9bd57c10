"""The puzzles of Auto-MAP's Tables 3 to 6: its models as we read them, with the paper's figures.

What the paper calls T5 has biases and LayerNorm, and 6 + 6 or 24 + 24 layers (`models.t5`): Table 3
lists its variables, and 6 x 18 + 3 of them are split. Beside the paper's puzzles stand T5 v1.0 with
sums anywhere, of which the greatest count is another plan, and random ones of which greed misses
the best.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from automap.program.problem import Problem
from automap.program.trace import trace_step
from automap.search.counts.agent import Task
from automap.search.counts.choices import Choices, Sums, data_parallelism, operator_partitioning
from hlo_tools.analyses.roles import Role
from models import t5, vgg
from models.training import Target


# One mesh axis: four devices, as the twelve heads of T5-base v1.0 cannot be split in eight.
AXIS_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """The paper's figures for a model and a task (Tables 5 and 6, section 5.2)."""

    target: str = ""
    dimensions: str = ""
    first_stage: str = ""
    second_stage: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model, how its sums are read, and the paper's figures for each task."""

    make: Callable[[], Target]
    sums: Sums
    partitioning: Paper = Paper()
    data: Paper = Paper()


MODELS: Mapping[str, Model] = {
    "VGG-19": Model(
        vgg.vgg_19,
        "products",
        Paper(target="38", first_stage="5 in 30 s"),
        Paper(target="2 of 4 tensors", first_stage="2 in 70 s"),
    ),
    "T5-base": Model(
        t5.automap_t5_base,
        "products",
        Paper(target="111", dimensions="314", first_stage="111 in 0.5 h"),
        Paper(target="7 of 10 tensors", first_stage="7 in 0.27 h"),
    ),
    "T5-3B": Model(
        t5.automap_t5_3b,
        "products",
        Paper(
            target="432",
            dimensions="1116",
            first_stage="397 in 0.74 h",
            second_stage="432 in 0.2 h more",
        ),
    ),
    "T5-11B": Model(
        t5.automap_t5_11b,
        "products",
        Paper(
            target="432",
            dimensions="1116",
            first_stage="386 in 1 h",
            second_stage="432 in 0.45 h more",
        ),
    ),
    "T5-base v1.0, all sums": Model(t5.t5_base, "anywhere"),
}
# Decisions as a program might have them of which greed misses the best, by number.
RANDOM: Mapping[str, int] = {"random, 87": 87}
# Share of dimensions that cannot be split, and rivals of each in the mean.
_NEVER, _RIVALS = 0.15, 2.5


def random_choices(n: int, seed: int) -> Choices:
    """Groups of a few dimensions, a seventh never to be split, with some rivals each at random."""
    source = np.random.default_rng(seed)
    meets = np.triu(source.random((n, n)) < _RIVALS / n, 1)
    weights = np.sort(1 + source.geometric(0.4, size=n))[::-1].copy()
    return Choices(
        classes=tuple(range(n)),
        dimensions=tuple((f"{i}",) * weight for i, weight in enumerate(weights.tolist())),
        weights=weights,
        allowed=source.random(n) >= _NEVER,
        conflicts=meets | meets.T,
        linked=np.zeros((n, n), bool),
        implied=np.zeros((n, n), bool),
    )


def chosen(choices: Choices, order: np.ndarray) -> Choices:
    """The decisions `order` of some choices, in that order; one may stand there several times, for
    parts that are split all or none.
    """
    square = np.ix_(order, order)
    same = (order[:, None] == order) & ~np.eye(len(order), dtype=bool)
    return Choices(
        classes=tuple(choices.classes[i] for i in order),
        dimensions=tuple(choices.dimensions[i] for i in order),
        weights=choices.weights[order],
        allowed=choices.allowed[order],
        conflicts=choices.conflicts[square],
        linked=choices.linked[square] | same,
        implied=choices.implied[square],
    )


def ungrouped(choices: Choices) -> Choices:
    """A decision for each dimension; those of one group are linked."""
    order = np.repeat(np.arange(len(choices)), choices.weights)
    places = np.arange(len(order)) - np.repeat(
        np.cumsum(choices.weights) - choices.weights, choices.weights
    )
    alone = chosen(choices, order)
    names = tuple((dims[place],) for dims, place in zip(alone.dimensions, places, strict=True))
    return replace(alone, dimensions=names, weights=np.ones(len(order), np.int64))


def smallest_first(choices: Choices) -> Choices:
    """The same decisions in the opposite order."""
    return chosen(choices, np.arange(len(choices))[::-1])


def with_nothing_implied(choices: Choices) -> Choices:
    """To split one decides nothing else."""
    return replace(choices, implied=np.zeros_like(choices.implied))


@dataclass(frozen=True)
class Puzzle:
    """What there is to decide: a task of a model of so many variables or tensors."""

    model: str
    task: Task
    choices: Choices
    variables: int
    paper: Paper


def puzzles(name: str) -> list[Puzzle]:
    """All tasks of one model, or one random case."""
    if name in RANDOM:
        choices = random_choices(RANDOM[name], 0)
        return [Puzzle(name, "operator partitioning", choices, 0, Paper())]
    model = MODELS[name]
    step, args = model.make()
    problem = trace_step(step, args, platform="cuda", layers="apart").problem
    choices = operator_partitioning(problem, AXIS_SIZE, model.sums)
    variables = _count(problem, Role.PARAMETER)
    both = [Puzzle(name, "operator partitioning", choices, variables, model.partitioning)]
    # T5-3B and -11B do not fit for data parallelism, says the paper.
    if model.data.target:
        choices = data_parallelism(problem, AXIS_SIZE)
        tensors = _count(problem, Role.BATCH, Role.STATE, Role.RNG)
        both.append(Puzzle(name, "auto data parallelism", choices, tensors, model.data))
    return both


def _count(problem: Problem, *roles: Role) -> int:
    return sum(role in roles for role in problem.roles)
