"""A timeline as a trace: JSON that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

One process per device, or for all that do the same, with a thread for its computation and one for
each link that leaves it; one complete event ("ph": "X") per task, with its seconds in `args`, as
the format counts in microseconds. Source: "Trace Event Format",
docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from automap.atomic_file import write_atomically


_MICROSECONDS: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What does one task at a time: the computation of a device, or a link; lanes of a device stand
    together.
    """

    device: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One task on a lane; `details` (JSON values) are shown when it is clicked."""

    lane: Lane
    name: str
    category: str
    start_seconds: float
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)


def trace(
    events: Iterable[Event], device_names: Mapping[int, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The trace as JSON values; events of a lane in the order of time. `device_names` are other
    than `device 3`.
    """
    # By time, as viewers want the events of a thread; threads get their numbers in this order.
    ordered = sorted(events, key=lambda e: (e.lane.device, e.start_seconds, e.seconds))
    threads: dict[Lane, int] = {}
    for event in ordered:
        threads.setdefault(event.lane, len(threads) + 1)
    rows = [_row(event, threads[event.lane]) for event in ordered]
    return {"traceEvents": [*_names(threads, device_names), *rows], "displayTimeUnit": "ms"}


def save_trace(
    path: str | Path,
    events: Iterable[Event],
    device_names: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Write a trace file, whole or not at all; raises `PlanError` if that cannot be done."""
    # No NaN: JSON has none, and viewers refuse the whole file for one.
    write_atomically(path, json.dumps(trace(events, device_names), allow_nan=False))


def _names(
    threads: Mapping[Lane, int], device_names: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    for device in sorted({lane.device for lane in threads}):
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": device,
            "args": {"name": device_names.get(device, f"device {device}")},
        }
        yield {
            "ph": "M",
            "name": "process_sort_index",  # else by name: device 10 before device 2
            "pid": device,
            "args": {"sort_index": device},
        }
    for lane, thread in threads.items():
        named = {"pid": lane.device, "tid": thread, "args": {"name": lane.name}}
        yield {"ph": "M", "name": "thread_name", **named}


def _row(event: Event, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.category,
        "pid": event.lane.device,
        "tid": thread,
        "ts": event.start_seconds * _MICROSECONDS,
        "dur": event.seconds * _MICROSECONDS,
        "args": {**event.details, "start_seconds": event.start_seconds, "seconds": event.seconds},
    }
