"""A calibration: signatures to measure -> a profile, with what could not be measured.

Known signatures are skipped, so that a calibration that was interrupted goes on where it stopped;
Ctrl-C ends it with what there is. The time of the loop's own small kernel, assumed to be that of
the smallest elementwise kernel, is subtracted from every other   -> in: `Session.measure`
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from automap.calibrate.timing import Timing
from automap.cost.profile import KernelProfile, Transfer
from automap.cost.profile.signatures import Signature, StreamSignature, matmul_sizes


Item = Signature | Transfer
# Slower than any device: the first guess errs to short loops, which are made longer.
_FIRST_UNITS_PER_S = 1e8
# A median is noisy if its samples differ by more than this.
_NOISY_SPREAD = 0.5
# Measured items that a crash may lose.
_SAVE_EVERY = 25


class Stopwatch(Protocol):
    """Measures one loop; raises `Unmeasurable` for what the device cannot run."""

    longest_seconds: float

    def time(self, item: Item, expected_seconds: float) -> Timing:
        """Seconds of one trip of the item's loop."""
        ...


class Unmeasurable(Exception):
    """Raised by a `Stopwatch` for what does not fit on the device, or does not compile."""


@dataclass
class Session:
    """Measures item after item; `profile` grows."""

    stopwatch: Stopwatch
    profile: KernelProfile
    on_progress: Callable[[int, int, Item], None]
    save: Callable[[KernelProfile], None]
    skipped: list[tuple[Item, str]] = field(default_factory=list)
    noisy: list[Item] = field(default_factory=list)
    is_interrupted: bool = False
    _rates: dict[str, float] = field(default_factory=dict)
    _loop_seconds: float = 0.0
    _new: list[tuple[Item, float]] = field(default_factory=list)

    def run(self, items: Iterable[Item]) -> None:
        """Measure what the profile lacks; on Ctrl-C stop and keep the rest."""
        # Known times are lessons, too: they tell the rate of their kind.
        known = self.profile.times()
        for item, seconds in known.items():
            self._learn(item, seconds)
        wanted = [item for item in dict.fromkeys(items) if item not in known]
        try:
            for number, item in enumerate(wanted):
                self.on_progress(number, len(wanted), item)
                self._try(item)
                if len(self._new) == _SAVE_EVERY:
                    self._save_new()
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            self._save_new()

    def _save_new(self) -> None:
        self.profile = self.profile.with_times(self._new)
        self._new.clear()
        self.save(self.profile)

    def _try(self, item: Item) -> None:
        """Measure an item, unless that takes too long or the device cannot run it."""
        expected = units(item) / self._rates.get(_kind(item), _FIRST_UNITS_PER_S)
        # Only what the rate of its own kind foretells is skipped: a first one is always tried.
        if expected > self.stopwatch.longest_seconds and _kind(item) in self._rates:
            self.skipped.append((item, f"would take about {expected:.3g} s a run"))
            return
        try:
            self._new.append((item, self.measure(item, expected)))
        except Unmeasurable as error:
            self.skipped.append((item, str(error)))

    def measure(self, item: Item, expected_seconds: float) -> float:
        """Seconds of one item without the loop's own kernel."""
        timing = self.stopwatch.time(item, expected_seconds)
        if timing.spread > _NOISY_SPREAD:
            self.noisy.append(item)
        if timing.seconds <= 0:
            raise Unmeasurable("took no longer than an empty loop")
        seconds = timing.seconds
        if not is_elementwise(item):
            # Never less than half: a kernel as small as the loop's own is mostly noise.
            seconds = max(seconds - self._loop_seconds, seconds / 2)
        self._learn(item, seconds)
        return seconds

    def _learn(self, item: Item, seconds: float) -> None:
        """Remember the latest rate of a kind, and the least time of an elementwise kernel."""
        self._rates[_kind(item)] = units(item) / seconds
        if is_elementwise(item):
            self._loop_seconds = min(self._loop_seconds or seconds, seconds)


def is_elementwise(item: Item) -> bool:
    """Whether the item's loop has no kernel but its own."""
    return isinstance(item, StreamSignature) and item.family == "elementwise"


def units(item: Item) -> float:
    """Operations of a contraction, bytes of anything else; at least one."""
    if isinstance(item, StreamSignature | Transfer):
        return float(max(item.n_bytes, 1))
    b, m, n, k = matmul_sizes(item)
    return 2.0 * b * m * n * k


def _kind(item: Item) -> str:
    match item:
        case Transfer():
            return item.kind
        case StreamSignature():
            return f"{item.family} {item.elements}"
        case _:
            return f"{type(item).__name__} {item.dtype}"
