"""A plan as text: the header and every decision, or one input or decision with its reason."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
import difflib
from typing import Final

from automap.errors import PlanError
from automap.plan.checks import Spec
from automap.plan.levers import levers_lines
from automap.plan.parts import (
    ConflictRecord,
    DecisionRecord,
    LeafRecord,
    PredictedRecord,
    VerifiedRecord,
)
from automap.plan.pipeline import pipeline_lines
from automap.plan.placement import placement_lines
from automap.plan.rates import rates_lines
from automap.plan.record import PlanRecord, mesh_text
from automap.plan.refined import refined_lines
from automap.plan.streams import streams_lines
from automap.quantities import bytes_text, gib_at_least, number_text, seconds_text
from automap.topology import Topology, lies_on
from automap.topology.link_loads import permutation
from automap.topology.rings import ring_pairs
from automap.topology.spans import spans


_SHOWN: Final = 20
_STORED: Final = {
    "full": "stored split over {axes}",
    "optimizer": "optimizer state stored split over {axes}",
}
# Plain gradient descent keeps no state that could be stored.
_STATELESS: Final = "update computed in parts over {axes}, parameters not stored split"


def overview(plan: PlanRecord) -> str:
    """Mesh, prediction, presets, search, decisions with reasons, conflicts and warnings."""
    # What it comes to first, then why.
    lines = [*_header(plan), "", "decisions:" if plan.decisions else "decisions: none"]
    for decision in plan.decisions:
        lines += [f"  {decision_text(plan, decision)}", f"    because {decision.reason}"]
    sections = {
        "conflicts": cut([line for row in plan.conflicts for line in conflict_lines(row)]),
        "warnings": list(plan.warnings),
    }
    for title, rows in sections.items():
        if rows:
            lines += ["", f"{title}:", *(f"  {row}" for row in rows)]
    return "\n".join(lines) + "\n"


def detail(plan: PlanRecord, what: str) -> str:
    """The inputs and decisions whose path or group is `what`, else those that contain it.

    Raises `PlanError` with the closest names if there is none.
    """
    chosen = chosen_names(plan, what)
    blocks = _leaves(plan, [leaf for leaf in plan.inputs if leaf.path in chosen])
    blocks += [_covered(plan, row) for row in plan.decisions if row.group in chosen]
    rest = len(blocks) - _SHOWN
    if rest > 0:
        blocks = [*blocks[:_SHOWN], f"and {rest} more; say more of the name to see one"]
    return "\n\n".join([f"mesh {mesh_text(plan)}", *blocks]) + "\n"


def chosen_names(plan: PlanRecord, what: str) -> set[str]:
    """The paths of inputs and the groups of decisions that `what` means, as `detail` says.

    Raises `PlanError` with the closest names if there is none.
    """
    names = [leaf.path for leaf in plan.inputs] + [row.group for row in plan.decisions]
    # An exact name is meant alone, though others may contain it.
    chosen = {name for name in names if name == what} or {n for n in names if what in n}
    if not chosen:
        closest = difflib.get_close_matches(what, dict.fromkeys(names), n=5, cutoff=0.3)
        hint = "closest: " + ", ".join(closest) if closest else "`automap explain` lists groups"
        raise PlanError(f"no input path or decision's group is or contains {what!r}; {hint}")
    return chosen


def _links_text(plan: PlanRecord) -> list[str]:
    """Which links each axis runs over, outermost first: `  data over network 2 and nvlink 4;
    ...`."""
    topology, sizes = Topology.from_dict(plan.topology), [size for _, size in plan.mesh.axes]
    # A mesh that does not lie on the levels has no links to name for an axis.
    if not lies_on(topology, sizes):
        return []
    axes = []
    for axis, (name, _) in enumerate(plan.mesh.axes):
        over = [f"{s.level.name} {s.ranks}" for s in reversed(spans(topology, sizes, (axis,)))]
        # An axis of one device runs over no links.
        axes += [f"{name} over {' and '.join(over)}"] if over else []
    return [f"  {'; '.join(axes)}"] if axes else []


def order_text(order: Sequence[int] | None) -> str:
    """`0 4 5 6 7 3 2 1`, cut where it is long; `by number` of None."""
    if order is None:
        return "by number"
    rest = len(order) - _SHOWN
    return " ".join(map(str, order[:_SHOWN])) + (f" and {rest} more" if rest > 0 else "")


def _order_lines(plan: PlanRecord) -> list[str]:
    """The order of the devices, and for each axis how far the next of its places is."""
    if plan.mesh.devices is None:
        return []
    topology, sizes = Topology.from_dict(plan.topology), [size for _, size in plan.mesh.axes]
    rings = []
    for axis, (name, size) in enumerate(plan.mesh.axes):
        hops = permutation(topology, ring_pairs(plan.mesh.devices, sizes, (axis,))).hops
        if size > 1:
            far = "neighbours" if hops == 1 else f"devices at most {hops} links apart"
            rings.append(f"{name} is a ring of {far}")
    return [f"  devices in the order {order_text(plan.mesh.devices)}: {'; '.join(rings)}"]


def spec_text(spec: Spec) -> str:
    """`[whole, data+model]`: per dimension the axes that split it."""
    return "[" + ", ".join("whole" if axes is None else "+".join(axes) for axes in spec) + "]"


def all_the_same_text(count: int) -> str:
    """How to get a plan that needs so many bytes on a device, which are too many."""
    return f"--memory-limit {gib_at_least(count)} gives that plan all the same"


def search_text(plan: PlanRecord) -> str:
    """`greedy in 1.5 s, 200 evaluations, seed 0; no bound proven`."""
    search, gap = plan.search, plan.search.gap
    bound = "no bound proven" if gap is None else f"at most {gap:.2%} above the proven bound"
    return (
        f"{search.strategy} in {seconds_text(search.seconds)}, {search.evaluations} evaluations, "
        f"seed {search.seed}; {bound}"
    )


def verified_text(row: VerifiedRecord) -> str:
    """`the TPU compiler (libtpu 0.0.51): peak 5.1 GiB: fits; 1 compiled in all`."""
    fits = "fits" if row.fits else "DOES NOT FIT"
    made_by = ", ".join(f"{name} {number}" for name, number in row.versions[-1:])
    return (
        f"the {row.compiler.upper()} compiler ({made_by}): peak {bytes_text(row.peak_bytes)}: "
        f"{fits}; {row.tried} compiled in all"
    )


def _fits_text(is_in_device: bool, is_in_limit: bool) -> str:  # noqa: FBT001 - of one line
    """Whether a plan fits, where the limit that was given may not be what the device has."""
    if is_in_device == is_in_limit:
        return "fits" if is_in_limit else "DOES NOT FIT"
    if is_in_limit:
        return "DOES NOT FIT THE DEVICE, only the memory limit that was given"
    return "more than the memory limit that was given"


def unsure_text(cost: PredictedRecord) -> str:
    """`, unsure: the compiler may need up to 25 % more`; "" for what is sure."""
    if not cost.unsure:
        return ""
    return f", unsure: the compiler may need up to {cost.memory_margin:.0%} more"


def _on_chip_lines(cost: PredictedRecord) -> Iterator[str]:
    if cost.on_chip_bytes:
        yield (
            f"  {bytes_text(cost.on_chip_bytes)} of it are expected to stay on the chip, so that a "
            f"compiler asks for {bytes_text(cost.expected_bytes)}"
        )


def _limit_text(limit_bytes: int | None) -> str:
    return "" if limit_bytes is None else f", {bytes_text(limit_bytes)} allowed"


def memory_bytes(plan: PlanRecord) -> int:
    """The memory of a device; where there are several kinds, of the one with the highest peak."""
    if "kinds" not in plan.topology or plan.placement is None:
        return plan.topology["device"]["memory_bytes"]
    peaks = [device.peak_bytes for device in plan.placement.devices]
    fullest = plan.topology["devices"][peaks.index(max(peaks))]["device"]
    return plan.topology["kinds"][fullest]["memory_bytes"]


def _header(plan: PlanRecord) -> list[str]:
    cost, device_bytes = plan.predicted, memory_bytes(plan)
    parts = {
        "compute": cost.compute_seconds,
        "collectives": cost.collective_seconds,
        "bubble": cost.bubble_seconds,
        "host memory": cost.host_seconds,
    }
    listed = " + ".join(f"{name} {seconds_text(s)}" for name, s in parts.items() if s)
    beside = f" (and {seconds_text(cost.hidden_seconds)} of them beside computation)"
    shares = {field.name: getattr(cost.memory, field.name) for field in fields(cost.memory)}
    memory = " + ".join(
        f"{name.replace('_', ' ')} {bytes_text(n)}" for name, n in shares.items() if n
    )
    lines = [
        f"plan for {plan.workload.target} on {plan.topology['name']}",
        f"mesh {mesh_text(plan)}",
        *(_links_text(plan) if plan.placement is None else ()),
        *_order_lines(plan),
        f"predicted step {seconds_text(cost.step_seconds)}"
        + (f" = {listed}" if listed else "")
        + (beside if cost.hidden_seconds else ""),
        *_rates(plan),
        f"predicted peak {bytes_text(cost.peak_bytes)} of {bytes_text(device_bytes)} on each "
        f"device{_limit_text(plan.search.memory_limit_bytes)}: "
        f"{_fits_text(cost.peak_bytes <= device_bytes, cost.fits)}{unsure_text(cost)}",
        f"  = {memory}",
        *_on_chip_lines(cost),
    ]
    if plan.verified is not None:
        lines.append(f"verified by {verified_text(plan.verified)}")
    if plan.refined is not None:
        lines += refined_lines(plan.refined)
    # The presets stand beside the plan, so that a reader sees what the search has gained.
    for preset in plan.presets:
        outcome = "fits" if preset.fits else "does not fit"
        lines.append(
            f"  preset {preset.name}: step {seconds_text(preset.step_seconds)}, peak "
            f"{bytes_text(preset.peak_bytes)}: {outcome}"
        )
    if plan.pipeline is not None:
        lines += pipeline_lines(plan.pipeline, {leaf.path: leaf.role for leaf in plan.inputs})
    if plan.streams is not None:
        lines += streams_lines(plan.streams)
    if plan.levers is not None:
        lines += levers_lines(plan.levers)
    if plan.placement is not None:
        lines += placement_lines(plan.placement, cost.step_seconds)
    return [*lines, f"found by {search_text(plan)}"]


def _rates(plan: PlanRecord) -> Iterator[str]:
    cost = plan.predicted
    if cost.rates is not None:
        yield from rates_lines(cost.rates, cost.step_seconds, plan.mesh.device_count)


def decision_text(plan: PlanRecord, row: DecisionRecord) -> str:
    """`compute batch: split over data; covers 2 leaves`."""
    how = "split over {axes}" if row.level is None else _STORED[row.level]
    how = _STATELESS if is_update_alone(plan, row) else how
    where = how.format(axes="+".join(row.axes)) if row.axes else "whole on every device"
    covered = number_text(len(row.covers), "leaf", "leaves") if row.covers else "no input"
    return f"{row.kind} {row.group}: {where}; covers {covered}"


def is_update_alone(plan: PlanRecord, row: DecisionRecord) -> bool:
    """Whether a decision to split optimizer state concerns parameters that have none."""
    covers = frozenset(row.covers)
    roles = {leaf.role for leaf in plan.inputs if leaf.path in covers}
    return row.level == "optimizer" and "optimizer state" not in roles


def _leaves(plan: PlanRecord, leaves: Sequence[LeafRecord]) -> list[str]:
    """A block of each kind of leaf: a weight and its moments are split for the same reasons, which
    are said once.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for leaf in leaves:
        shape = ",".join(map(str, leaf.shape))
        text = f"{leaf.path}: {leaf.role}, {leaf.dtype}[{shape}], spec {spec_text(leaf.spec)}"
        alike.setdefault(tuple(_reasons(plan, leaf)), []).append(text)
    return ["\n".join((*cut(texts), *reasons)) for reasons, texts in alike.items()]


def _reasons(plan: PlanRecord, leaf: LeafRecord) -> list[str]:
    lines = []
    covering = [row for row in plan.decisions if leaf.path in row.covers]
    for row in covering:
        lines += [f"  {decision_text(plan, row)}", f"    because {row.reason}"]
        lines += _conflicts(plan, row.group)
    return lines or ["  no decision covers it"]


def _covered(plan: PlanRecord, row: DecisionRecord) -> str:
    specs = {leaf.path: spec_text(leaf.spec) for leaf in plan.inputs}
    listed = [f"    {name}  {specs.get(name, '')}".rstrip() for name in row.covers]
    return "\n".join(
        [
            decision_text(plan, row),
            f"  because {row.reason}",
            *cut(listed),
            *_conflicts(plan, row.group),
        ]
    )


def _conflicts(plan: PlanRecord, group: str) -> list[str]:
    concerned = [row for row in plan.conflicts if group in (row.group, row.with_)]
    lines = [line for row in concerned for line in conflict_lines(row)]
    return [f"    {'' if line.startswith(' ') else 'conflict of '}{line}" for line in lines]


def conflict_lines(row: ConflictRecord) -> list[str]:
    """Where two groups meet and what is done, then what each way to settle it would cost."""
    lines = [f"{row.group} with {row.with_} at {row.at}: {row.outcome}"]
    for other in row.outcomes:
        fits = "" if other.fits else ", does not fit"
        lines.append(
            f"  {other.name}: step {seconds_text(other.step_seconds)}, peak "
            f"{bytes_text(other.peak_bytes)}{fits}"
        )
    return lines


def cut(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    rest = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"    and {rest} more"] if rest > 0 else [])]
