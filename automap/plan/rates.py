"""The numbers people ask for: utilization (MFU), rates, where the seconds go, what would help.

    MFU              model flops / (step seconds * devices * peak of one device)
    model flops      of the step's products, each counted once however many devices repeat it; what
                     is computed again by rematerialization is not counted
    peak             of the type that most of them are in (`peak_dtype`, HLO's name)
    rates            samples, or tokens, of a step / step seconds

A step's seconds are those of its products at the peak, on all devices, and what is lost to each
cause of `LostRecord`: for one program their sum is the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, Literal

from automap.plan.checks import check_numbers, refuse
from automap.quantities import bytes_text, count_text, seconds_text


ChangeKind = Literal["batch", "machine", "memory", "preset", "type"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """Seconds of a step in which no product runs at the peak, by cause; null where it is not told
    apart, as inside the stages of a pipeline.

    - `collectives`: in which a device waits for them.
    - `bubbles`: in which it waits for other stages.
    - `rematerialization`: of kernels that compute again what the forward pass has made before.
    - `padding`: that whole tiles of memory and of the matrix unit take more than what is in them.
    - `launches`: that kernels take for being launched, beyond their work.
    - `products`: of products, beyond the peak: they reach less of it, wait for memory, are in
      another type, or are repeated on several devices.
    - `memory`: of all other kernels, which memory bounds.
    """

    collectives: float
    bubbles: float
    rematerialization: float | None = None
    padding: float | None = None
    launches: float | None = None
    products: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)

    @property
    def by_cause(self) -> dict[str, float]:
        """What is known, the most first."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return dict(sorted(((k, s) for k, s in known.items() if s), key=lambda row: -row[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord:
    """One change, and what the step would come to with it, by the same prediction.

    - `kind`: of what is changed: the batch, the machine, the memory of a device, the preset that
      was asked for, or the type of products.
    - `what`: the change in words.
    - `step_seconds`, `peak_bytes`: as of the plan itself.
    - `speedup`: how many times the samples a second.
    """

    kind: ChangeKind
    what: str
    step_seconds: float
    peak_bytes: int
    speedup: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesRecord:
    """How well a step uses its devices, and how much it does in a second.

    - `mfu`: model FLOPs utilization, a share of 1.
    - `model_flops`: of one step, over all devices.
    - `peak_dtype`, `peak_flops_per_s`: of one device, what `mfu` is a share of.
    - `samples`: examples of a step: the leading dimension of the inputs that hold the batch; 0
      without a batch.
    - `tokens`: positions of the longest integers [batch, sequence] of the batch; 0 without such.
    - `token_input`: the path of the input that they were counted in.
    - `samples_per_second`, `tokens_per_second`: of all devices together.
    - `lost`: where the other seconds go.
    - `changes`: at most three that would help, the one that helps most first.
    """

    mfu: float
    model_flops: float
    peak_dtype: str
    peak_flops_per_s: float
    samples: int
    samples_per_second: float
    tokens: int
    tokens_per_second: float
    token_input: str | None
    lost: LostRecord
    changes: tuple[ChangeRecord, ...] = ()

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, and for tokens without their input."""
        check_numbers(self)
        if (self.tokens > 0) != (self.token_input is not None):
            allowed = "the path of an input if there are tokens, else null"
            raise refuse("token_input", self.token_input, allowed)


CAUSES: Final = {
    "collectives": "collectives",
    "bubbles": "bubbles",
    "rematerialization": "rematerialization",
    "padding": "padding to tiles",
    "launches": "launches",
    "products": "products below the peak",
    "memory": "kernels that memory bounds",
}
"""What people read, by the fields of `LostRecord`."""


def mfu_text(mfu: float) -> str:
    """`41.2%`, with three digits."""
    return f"{mfu * 100:.3g}%"


def rates_lines(rates: RatesRecord, step_seconds: float, devices: int) -> Iterator[str]:
    """The lines of `automap explain` below the predicted step."""
    if rates.model_flops:
        yield (
            f"  MFU {mfu_text(rates.mfu)} of {count_text(rates.peak_flops_per_s)}FLOP/s in "
            f"{rates.peak_dtype} on each device"
        )
    if rates.samples:
        yield (
            f"  {rates.samples:,} samples a step: {_per_second(rates.samples_per_second, devices)}"
        )
    if rates.tokens:
        yield (
            f"  {rates.tokens:,} tokens a step, counted in {rates.token_input}: "
            f"{_per_second(rates.tokens_per_second, devices)}"
        )
    lost = [
        f"{CAUSES[cause]} {seconds_text(seconds)}"
        # A plan that someone has written may lose seconds in a step of none.
        + (f" ({seconds / step_seconds:.1%})" if step_seconds else "")
        for cause, seconds in rates.lost.by_cause.items()
    ]
    if lost:
        yield f"  lost to {', '.join(lost)}"
    for change in rates.changes:
        yield (
            f"  would help: {change.what}: {change.speedup:.3g} times the samples a second (step "
            f"{seconds_text(change.step_seconds)}, peak {bytes_text(change.peak_bytes)})"
        )


def _per_second(rate: float, devices: int) -> str:
    return f"{count_text(rate)}/s, {count_text(rate / devices)}/s on each device"
