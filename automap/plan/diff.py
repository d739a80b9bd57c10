"""What differs between two plans, as text: one section per kind of fact, empty ones left out."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Final

from automap.plan.explain import cut, order_text, search_text, spec_text, verified_text
from automap.plan.levers import levers_text
from automap.plan.parts import DecisionRecord, LeafRecord
from automap.plan.pipeline import pipeline_text
from automap.plan.placement import operator_devices, placement_text
from automap.plan.rates import RatesRecord, mfu_text
from automap.plan.record import PlanRecord, mesh_text
from automap.plan.refined import compiled_plan_text
from automap.plan.streams import operators, streams_text
from automap.quantities import bytes_text, count_text, seconds_text


_HASH: Final = 12
"""Characters of a hash that are shown."""


def differences(old: PlanRecord, new: PlanRecord) -> str:
    """Lines `what: old -> new`: what decides between two plans first, then details; the search and
    hashes come last.
    """
    if old == new:
        return "the plans are equal\n"
    lines = [line for section in _SECTIONS for line in section(old, new)]
    return "\n".join(lines or ["only the order of entries, or what decisions cover"]) + "\n"


def _changed_verdict(old: PlanRecord, new: PlanRecord) -> list[str]:
    """Whether it fits, the step and the peak: by these people choose."""
    before, after = old.predicted, new.predicted
    return [
        *_pairs({"fits": _yes_or_no(before.fits)}, {"fits": _yes_or_no(after.fits)}),
        *_change("step", before.step_seconds, after.step_seconds, seconds_text),
        *_changed_rates(before.rates, after.rates),
        *_change("peak memory", before.peak_bytes, after.peak_bytes, bytes_text),
    ]


def _changed_rates(old: RatesRecord | None, new: RatesRecord | None) -> list[str]:
    if old is None or new is None:
        return []
    before, after = old.tokens_per_second, new.tokens_per_second
    return [
        *_change("MFU", old.mfu, new.mfu, mfu_text),
        *_change("samples/s", old.samples_per_second, new.samples_per_second, count_text),
        *_change("tokens/s", before, after, count_text),
    ]


def _summary(plan: PlanRecord) -> Mapping[str, str]:
    """One-line facts that every plan has."""
    return {
        "mesh": mesh_text(plan),
        "order of devices": order_text(plan.mesh.devices),
        "pipeline": pipeline_text(plan.pipeline),
        "placement": placement_text(plan.placement),
        "streams": streams_text(plan.streams),
        "levers": levers_text(plan.levers),
        "topology": plan.topology["name"],
        "target": plan.workload.target,
        "verified": verified_text(plan.verified) if plan.verified else "no",
    }


def _changed_summary(old: PlanRecord, new: PlanRecord) -> list[str]:
    lines = _pairs(_summary(old), _summary(new))
    # Calibration changes numbers and keeps the name.
    if old.topology != new.topology and old.topology["name"] == new.topology["name"]:
        lines.append(f"topology: {old.topology['name']} with other numbers")
    return lines


def _changed_costs(old: PlanRecord, new: PlanRecord) -> list[str]:
    """What the step and the peak are made of."""
    lines = []
    for name in ("compute", "collective", "bubble"):
        field = f"{name}_seconds"
        before, after = getattr(old.predicted, field), getattr(new.predicted, field)
        lines += _change(name, before, after, seconds_text)
    for name in ("parameters", "optimizer", "other_state", "inputs", "activations", "temporaries"):
        before, after = getattr(old.predicted.memory, name), getattr(new.predicted.memory, name)
        lines += _change(f"{name.replace('_', ' ')} memory", before, after, bytes_text)
    return lines


def _changed_programs(old: PlanRecord, new: PlanRecord) -> list[str]:
    """Whether they are plans of the same program: the beginnings of its hashes."""
    before, after = old.workload, new.workload
    return [
        *_pairs({"hlo": before.hlo_sha256[:_HASH]}, {"hlo": after.hlo_sha256[:_HASH]}),
        *_pairs(
            {"jaxpr": (before.jaxpr_sha256 or "none")[:_HASH]},
            {"jaxpr": (after.jaxpr_sha256 or "none")[:_HASH]},
        ),
    ]


def _yes_or_no(fits: bool) -> str:  # noqa: FBT001 - it is what is said
    return "yes" if fits else "no"


def _change(name: str, before: float, after: float, text: Callable[..., str]) -> list[str]:
    if before == after:
        return []
    # From nothing there is no percentage.
    ratio = f" ({after / before - 1:+.1%})" if before else ""
    return [f"{name}: {text(before)} -> {text(after)}{ratio}"]


def _changed_leaves(old: PlanRecord, new: PlanRecord) -> list[str]:
    lines = []
    for name in ("inputs", "outputs"):
        before = {leaf.path: leaf for leaf in getattr(old, name)}
        after = {leaf.path: leaf for leaf in getattr(new, name)}
        # Layers change alike: paths with one change stand together.
        alike: dict[str, list[str]] = {}
        for path in dict.fromkeys([*before, *after]):
            if before.get(path) != after.get(path):
                change = _leaf_change(before.get(path), after.get(path))
                alike.setdefault(change, []).append(path)
        for change, paths in alike.items():
            lines += [f"{name} {change}: {len(paths)}", *cut([f"    {path}" for path in paths])]
    return lines


def _leaf_change(before: LeafRecord | None, after: LeafRecord | None) -> str:
    # Only the sharding differs: nothing else has to be repeated.
    if before and after and dataclasses.replace(before, spec=after.spec) == after:
        return f"{spec_text(before.spec)} -> {spec_text(after.spec)}"
    return f"{_leaf(before)} -> {_leaf(after)}"


def _leaf(leaf: LeafRecord | None) -> str:
    if leaf is None:
        return "absent"
    shape = ",".join(map(str, leaf.shape))
    return f"{leaf.role} {leaf.dtype}[{shape}] {spec_text(leaf.spec)}"


def _changed_rows(old: PlanRecord, new: PlanRecord) -> list[str]:
    """Entries of the lists that have no order: those of the old plan alone, then the new one's."""
    lines = []
    for title, list_rows in _ROWS.items():
        # Dictionaries keep the order in which rows stand, and a row twice is one.
        before, after = dict.fromkeys(list_rows(old)), dict.fromkeys(list_rows(new))
        only = [f"    - {row}" for row in before if row not in after]
        only += [f"    + {row}" for row in after if row not in before]
        lines += [f"{title}:", *cut(only)] if only else []
    return lines


def _decision(row: DecisionRecord) -> str:
    where = "+".join(row.axes) or "whole"
    what = " ".join(filter(None, (row.kind, row.group, row.level)))
    return f"{what}: {where}; because {row.reason}"


_ROWS: Final[Mapping[str, Callable[[PlanRecord], Sequence[str]]]] = {
    "constraints": lambda plan: [
        f"{row.at} ({row.value}) {spec_text(row.spec)}" for row in plan.constraints
    ],
    "collectives": lambda plan: [
        f"{row.count} {row.kind} over {'+'.join(row.axes)} {row.phase}, {bytes_text(row.bytes)}"
        for row in plan.predicted.collectives
    ],
    "decisions": lambda plan: [_decision(row) for row in plan.decisions],
    "conflicts": lambda plan: [
        f"{row.group} with {row.with_} at {row.at}: {row.outcome}" for row in plan.conflicts
    ],
    "stages of streams": lambda plan: [
        f"{stage.together}: {' | '.join(op.at + ' ' + op.label for op in operators(stage))}"
        for stage in (plan.streams.stages if plan.streams else ())
    ],
    "operators on devices": lambda plan: [
        f"{name}: {device}" for name, device in operator_devices(plan.placement)
    ],
    "presets": lambda plan: [
        f"{row.name}: {seconds_text(row.step_seconds)}, {bytes_text(row.peak_bytes)}, "
        + ("fits" if row.fits else "does not fit")
        for row in plan.presets
    ],
    "compiled": lambda plan: [
        compiled_plan_text(row) for row in (plan.refined.compiled if plan.refined else ())
    ],
    "alive at the peak": lambda plan: [
        f"{row.count} {row.name}, {bytes_text(row.bytes)}"
        for row in (plan.memory_curve.held if plan.memory_curve else ())
    ],
    "warnings": lambda plan: plan.warnings,
}


def _changed_search(old: PlanRecord, new: PlanRecord) -> list[str]:
    return _pairs({"found by": search_text(old)}, {"found by": search_text(new)})


def _pairs(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {value} -> {after[name]}"
        for name, value in before.items()
        if value != after[name]
    ]


_SECTIONS: Final = (
    _changed_verdict,
    _changed_summary,
    _changed_costs,
    _changed_leaves,
    _changed_rows,
    _changed_search,
    _changed_programs,
)
