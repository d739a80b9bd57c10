"""The `levers` field of a plan: what trades time for memory, each as data that is applied again
without a search.

Rematerialization is said by blocks: equal runs of equations of the step, as repeated layers are, or
the body of a loop. What a block makes and the backward pass reads is stored if it is `kept`, and
computed again from what is kept where it is not (`automap.jaxpr.rematerialize`). What the body of a
loop keeps may wait in the host's memory (`automap.jaxpr.remat_loops`). In microbatches
the step runs that many times on equal parts of the batch before it updates once
(`automap.jaxpr.accumulate`); its blocks are then those of the step in microbatches. What is
offloaded is in the host's memory between steps (`automap.jaxpr.hosted`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
import re
from typing import Final, Literal

from automap.plan import codec
from automap.plan.checks import check_numbers, refuse, repeated
from automap.quantities import bytes_text, number_text, seconds_text


BlockKind = Literal["layers", "scan"]
KeptIn = Literal["device", "host"]

_SITE: Final = re.compile(r"[0-9]+(\.[bc][0-9]+\.[0-9]+)*")
_KEPT: Final = re.compile(r"(0|[1-9][0-9]{0,8}):out(0|[1-9][0-9]{0,8})|carry:(0|[1-9][0-9]{0,8})")
CARRY: Final = -1
"""In the place of the number of an equation: what a trip of a loop is given by the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """A value that every block of a group keeps.

    - `at`: `<n>:out<j>`, result j of the block's n-th equation; `carry:<n>`, carry n of a loop.
    - `value`: what it is, for people.
    - `memory`: where it waits for the backward pass; in the host's only what a loop stacks.
    """

    at: str
    value: str
    memory: KeptIn = field(default="device", metadata=codec.ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a place of another form."""
        if not _KEPT.fullmatch(self.at):
            allowed = "<n>:out<j>, result j of the block's n-th equation, or carry:<n>"
            raise refuse("at", self.at, allowed)

    @property
    def place(self) -> tuple[int, int]:
        """(equation of the block, result), or (`CARRY`, number of the carry)."""
        before, _, number = self.at.rpartition(":")
        if before == "carry":
            return CARRY, int(number)
        return int(before), int(number.removeprefix("out"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RematRecord:
    """Equal blocks of the forward pass, and what they keep for the backward pass.

    - `kind`: `layers` are runs of the step's own equations, `scan` is the whole body of a loop.
    - `blocks`: the site of the first equation of each, in program order.
    - `equations`: how many each of them has.
    - `kept`: what is stored; all else is computed again where the backward pass reads it. What the
      forward pass reads behind a block is stored in any case.
    """

    kind: BlockKind
    blocks: tuple[str, ...]
    equations: int
    kept: tuple[KeptRecord, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for no block, one of no equations, one without a site, what is beyond a
        block's end, and what is in the host's memory of runs of equations.
        """
        if not self.blocks:
            raise refuse("blocks", [], "the site of at least one block")
        for index, site in enumerate(self.blocks):
            if not _SITE.fullmatch(site):
                raise refuse(f"blocks[{index}]", site, "the site of an equation, as 12.b0.0")
        if self.equations < 1:
            raise refuse("equations", self.equations, "an integer >= 1")
        for index, row in enumerate(self.kept):
            if row.place[0] >= self.equations:
                allowed = f"one of the {self.equations} equations, from 0"
                raise refuse(f"kept[{index}].at", row.at, allowed)
            if row.place[0] == CARRY and row.memory != "host":
                allowed = '"host": carries are on the device in any case'
                raise refuse(f"kept[{index}].memory", row.memory, allowed)
            if row.memory == "host" and self.kind != "scan":
                allowed = '"device": only what a loop stacks can be in the host\'s memory'
                raise refuse(f"kept[{index}].memory", row.memory, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutLeversRecord:
    """The best plan of the step as it was written, for comparison: the smallest that was found
    where none fits.

    - `step_seconds`, `peak_bytes`, `fits`: as of the plan itself.
    - `fastest_seconds`, `fastest_bytes`: of the fastest plan that was priced, where none fits; null
      where one fits, and where it is not known.
    """

    step_seconds: float
    peak_bytes: int
    fits: bool
    fastest_seconds: float | None = field(default=None, metadata=codec.ADDED_LATER)
    fastest_bytes: int | None = field(default=None, metadata=codec.ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeversRecord:
    """The levers of a plan, which are applied to the step before its shardings.

    - `remat`: what is computed again in the backward pass, a group of equal blocks each.
    - `microbatches`: how many parts of the batch gradients are accumulated over; 1 is the step as
      it is.
    - `offload`: paths of the inputs, optimizer state, that are in the host's memory between steps.
    - `host_bytes`: what a device has there, of them and of what `remat` keeps there.
    - `recompute_seconds`: of a step, in which the device computes again what `remat` does not keep;
      part of `predicted.compute_seconds`.
    - `without`: what the best plan without levers would cost.
    """

    remat: tuple[RematRecord, ...]
    microbatches: int = field(default=1, metadata=codec.ADDED_LATER)
    offload: tuple[str, ...] = field(default=(), metadata=codec.ADDED_LATER)
    host_bytes: int = field(default=0, metadata=codec.ADDED_LATER)
    recompute_seconds: float
    without: WithoutLeversRecord

    def __post_init__(self) -> None:
        """Raise `PlanError` for levers that change nothing, for a block in two groups, for an input
        that is named twice, and for a number out of range.
        """
        check_numbers(self)
        if self.microbatches < 1:
            raise refuse("microbatches", self.microbatches, "an integer >= 1")
        if not self.remat and not self.offload and self.microbatches == 1:
            allowed = "a group, microbatches or an offload; levers are null where there is none"
            raise refuse("remat", [], allowed)
        again = repeated(self.offload)
        if again is not None:
            raise refuse(f"offload[{again[0]}]", again[1], "a path that was not there yet")
        seen = set[str]()
        for number, group in enumerate(self.remat):
            for index, site in enumerate(group.blocks):
                if site in seen:
                    allowed = "the site of a block that is not in another group"
                    raise refuse(f"remat[{number}].blocks[{index}]", site, allowed)
                seen.add(site)


def levers_text(levers: LeversRecord | None) -> str:
    """`4 microbatches, rematerialization of 24 layers`, or `none`: one line."""
    parts = []
    if levers is not None and levers.microbatches > 1:
        parts.append(f"{levers.microbatches} microbatches")
    if levers is not None and levers.remat:
        parts.append("rematerialization of " + ", ".join(map(_blocks_text, levers.remat)))
    if levers is not None and levers.offload:
        parts.append(_offload_text(levers))
    return ", ".join(parts) or "none"


def levers_lines(levers: LeversRecord) -> Iterator[str]:
    """What each lever does, and what the step would cost without."""
    if levers.microbatches > 1:
        yield f"  gradients accumulated over {levers.microbatches} microbatches, one update"
    for group in levers.remat:
        kept = ", ".join(row.value for row in group.kept if row.memory == "device") or "nothing"
        yield f"  rematerialization of {_blocks_text(group)}: kept {kept}"
        hosted = ", ".join(row.value for row in group.kept if row.memory == "host")
        if hosted:
            yield f"    in host memory until the backward pass: {hosted}"
    if levers.remat:
        yield f"    {seconds_text(levers.recompute_seconds)} of compute are what is computed again"
    there = f"{bytes_text(levers.host_bytes)} of each device"
    is_kept_there = any(row.memory == "host" for group in levers.remat for row in group.kept)
    if levers.offload:
        kept = ", kept values with them" if is_kept_there else ""
        yield f"  {_offload_text(levers)}: {there}{kept}"
    elif is_kept_there:
        yield f"    in host memory are {there}"
    yield f"    without levers: {_without_text(levers.without)}"


def _without_text(without: WithoutLeversRecord) -> str:
    smallest = f"{seconds_text(without.step_seconds)}, {bytes_text(without.peak_bytes)}"
    if without.fits:
        return f"{smallest}, fits"
    if without.fastest_seconds is None or without.fastest_bytes is None:
        return f"the smallest plan {smallest}, does not fit"
    fastest = f"{seconds_text(without.fastest_seconds)}, {bytes_text(without.fastest_bytes)}"
    if fastest == smallest:
        return f"the fastest plan and the smallest {smallest}, does not fit"
    return f"the fastest plan {fastest}, the smallest {smallest}: neither fits"


def _offload_text(levers: LeversRecord) -> str:
    leaves = number_text(len(levers.offload), "leaf", "leaves")
    return f"offload of {leaves} of optimizer state to host memory"


def _blocks_text(group: RematRecord) -> str:
    count = len(group.blocks)
    if group.kind == "scan":
        return f"the loop at {group.blocks[0]}" if count == 1 else f"{count} loops"
    where = f"the {group.equations} equations from {group.blocks[0]}"
    return where if count == 1 else f"{count} layers of {group.equations} equations"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is decided of each lever, as in `LeversRecord`."""

    remat: tuple[RematRecord, ...] = ()
    microbatches: int = 1
    offload: tuple[str, ...] = ()

    @classmethod
    def of(cls, levers: LeversRecord | None) -> "Choice":
        """That of a record, or of a step as it is."""
        if levers is None:
            return cls()
        return cls(levers.remat, levers.microbatches, levers.offload)
