"""A schedule by what a device says of its stages, of which it is asked as few as decide.

Each operator alone is asked for first, then greedy's stages. Then, by turns,

    schedule   the best one by the prices so far                        -> in: `find_schedule`
    ask        for each of its stages that was not asked for yet

until all stages of the best schedule were asked for: it is then no slower, as measured, than
sequential and greedy, and no other schedule is faster by what is known of its stages. A stage that
was not measured is priced by the model in units of its operators alone as measured
(`automap.streams.costs`), and corrected, for stages at once and for merged ones, by

    correction = median over the stages that were measured of measured / so priced
                                                                         -> in: `_prices`
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
import math
from statistics import median

from automap.deadline import Deadline
from automap.streams.arrays import PricedOperators, StagePrices
from automap.streams.schedule import Schedule, Stage, find_schedule
from automap.streams.strategies import Limits


Ask = Callable[[Stage], float | None]
"""Seconds of a stage as measured; None where that is not known."""


def find_measured(
    priced: PricedOperators, strategy: str, limits: Limits, deadline: Deadline, ask: Ask
) -> tuple[Schedule, StagePrices]:
    """The best schedule by what `ask` says, and what it said."""
    answers: dict[Stage, float | None] = {}

    def ask_for(schedule: Schedule) -> bool:
        """Whether one of its stages was not measured before, and is now."""
        is_new = False
        for stage in schedule.stages:
            key = replace(stage, seconds=0.0, block=0)
            if key not in answers:
                answers[key] = ask(stage)
                is_new = is_new or answers[key] is not None
        return is_new

    for simple in ("sequential", "greedy"):
        ask_for(find_schedule(priced, simple, limits, deadline))
    while True:
        prices = _prices(priced, answers)
        schedule = find_schedule(replace(priced, measured=prices), strategy, limits, deadline)
        if not ask_for(schedule):
            return schedule, prices


def _prices(priced: PricedOperators, answers: Mapping[Stage, float | None]) -> StagePrices:
    """What was measured, and what it says of the model."""
    seconds: dict[tuple[int, ...], tuple[float, float]] = {}
    for stage, measured in answers.items():
        if measured is not None:
            members = stage.members
            column = 1 if stage.together == "merged" else 0
            both = list(seconds.get(members, (math.nan, math.nan)))
            both[column] = measured
            seconds[members] = (both[0], both[1])
    if not seconds:
        return StagePrices()
    alone = priced.columns["alone"]
    ratio = [
        seconds[number,][0] / alone[number] if (number,) in seconds else 1.0
        for number in range(len(alone))
    ]
    shares: tuple[list[float], list[float]] = ([], [])
    least = [*ratio]
    for members, both in seconds.items():
        if len(members) == 1:
            continue
        modelled = priced.stage_seconds(members)
        scale = sum(alone[n] * ratio[n] for n in members) / sum(alone[n] for n in members)
        for column in (0, 1):
            if not math.isnan(both[column]):
                shares[column].append(both[column] / (modelled[column] * scale))
                least.append(both[column] / min(modelled))
    corrections = (median(shares[0] or [1.0]), median(shares[1] or [1.0]))
    return StagePrices(
        seconds=seconds,
        corrections=corrections,
        # No price is below this share of the model's least seconds, measured or corrected.
        floor_share=min(1.0, min(least), min(ratio) * min(corrections)),
    )
