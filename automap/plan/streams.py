"""The `streams` field of a plan: the operators of one device in stages that run one after another,
each of operators that run at once or as one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from automap.plan.checks import check_numbers, refuse, repeated
from automap.plan.codec import ADDED_LATER
from automap.quantities import number_text, seconds_text


Together = Literal["concurrent", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """What is put into a stage.

    - `at`: the site of its equation (`automap.jaxpr.sites`); an instruction's name for a program
      without sites.
    - `label`: what it is, for people.
    - `seconds`: predicted, or measured, of it alone; None in older files.
    """

    at: str
    label: str
    seconds: float | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStageRecord:
    """One stage.

    - `together`: `concurrent`, its groups run at once; `merged`, its operators run as one.
    - `groups`: of operators, each in the order in which it runs.
    - `seconds`: of the whole stage, measured where it was, else predicted.
    - `model_seconds`: what the model alone says of a stage that was measured; None of another one.
    """

    together: Together
    groups: tuple[tuple[OperatorRecord, ...], ...]
    seconds: float
    model_seconds: float | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, an empty group, and a merged stage of one
        operator or of several in a group.
        """
        check_numbers(self)
        if not self.groups:
            raise refuse("groups", [], "at least one group")
        for index, group in enumerate(self.groups):
            if not group:
                raise refuse(f"groups[{index}]", [], "at least one operator")
            # What becomes one operator cannot read what one of its parts makes.
            if self.together == "merged" and len(group) > 1:
                ats = [operator.at for operator in group]
                raise refuse(f"groups[{index}]", ats, "one operator a group where they are merged")
        if self.together == "merged" and len(self.groups) < 2:
            raise refuse("groups", len(self.groups), "at least two where they are merged")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsRecord:
    """A schedule of the operators of one device.

    - `most_groups`: groups of a stage, at most; None for no limit.
    - `most_in_group`: operators of a group, at most.
    - `sequential_seconds`: predicted, with one operator a stage.
    - `greedy_seconds`: predicted, with all operators in a stage whose operands are there.
    - `stages`: in the order in which they run; each operator is in one of them.
    """

    most_groups: int | None
    most_in_group: int
    sequential_seconds: float
    greedy_seconds: float
    stages: tuple[StreamStageRecord, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, no stages, an operator in two of them, and
        groups beyond the limits.
        """
        check_numbers(self)
        for name in ("most_groups", "most_in_group"):
            if getattr(self, name) == 0:
                raise refuse(
                    name, 0, "an integer from 1" + (", or null" if "groups" in name else "")
                )
        if not self.stages:
            raise refuse("stages", [], "at least one stage")
        again = repeated(operator.at for stage in self.stages for operator in operators(stage))
        if again is not None:
            raise refuse("stages", again[1], "each operator in one group of one stage")
        for index, stage in enumerate(self.stages):
            count = len(stage.groups)
            if self.most_groups is not None and count > self.most_groups and _is_at_once(stage):
                raise refuse(f"stages[{index}].groups", count, f"at most {self.most_groups}")
            for number, group in enumerate(stage.groups):
                if len(group) > self.most_in_group:
                    path = f"stages[{index}].groups[{number}]"
                    raise refuse(path, len(group), f"at most {self.most_in_group} operators")

    @property
    def seconds(self) -> float:
        """Predicted, of a step: the sum of its stages."""
        return sum(stage.seconds for stage in self.stages)


def operators(stage: StreamStageRecord) -> Iterator[OperatorRecord]:
    """The operators of a stage, group by group."""
    for group in stage.groups:
        yield from group


def streams_text(record: StreamsRecord | None) -> str:
    """`63 stages, 20 of several operators, 5 merged`, or `no`."""
    if record is None:
        return "no"
    several = sum(len(stage.groups) > 1 and _is_at_once(stage) for stage in record.stages)
    merged = sum(stage.together == "merged" for stage in record.stages)
    stages = number_text(len(record.stages), "stage")
    return f"{stages}, {several} of operators at once, {merged} merged"


def streams_lines(record: StreamsRecord) -> Sequence[str]:
    """What `explain` says: what the schedule gains, and a line for each stage of several
    operators.
    """
    limit = "any number of" if record.most_groups is None else f"at most {record.most_groups}"
    lines = [
        f"operators of one device in {streams_text(record)} ({limit} groups a stage, at most "
        f"{record.most_in_group} operators a group)",
        f"  one after another {seconds_text(record.sequential_seconds)}, greedy "
        f"{seconds_text(record.greedy_seconds)}, these stages {seconds_text(record.seconds)}",
    ]
    lines += _measured_lines(record)
    for number, stage in enumerate(record.stages):
        if len(stage.groups) > 1:
            groups = (" then ".join(op.label for op in group) for group in stage.groups)
            joined = (" + " if stage.together == "merged" else " | ").join(groups)
            taken = seconds_text(stage.seconds)
            if stage.model_seconds is not None:
                taken += f" measured ({seconds_text(stage.model_seconds)} by the model)"
            lines.append(f"  stage {number}, {stage.together}, {taken}: {joined}")
    return lines


def _measured_lines(record: StreamsRecord) -> Iterator[str]:
    """How many stages were measured, and what the model says of them."""
    measured = [stage for stage in record.stages if stage.model_seconds is not None]
    if measured:
        model = sum(stage.model_seconds or 0.0 for stage in measured)
        yield (
            f"  {len(measured)} of {len(record.stages)} stages were measured on the device: "
            f"{seconds_text(sum(stage.seconds for stage in measured))}, where the model says "
            f"{seconds_text(model)}"
        )


def _is_at_once(stage: StreamStageRecord) -> bool:
    return stage.together == "concurrent"
