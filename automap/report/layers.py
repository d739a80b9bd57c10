"""The leaves of a plan folded over its repeated layers, for pictures and tables.

Paths that differ in numbers only, as `layers[0].wq` and `layers[1].wq`, are one row if their shape,
type, role and split agree too                                           -> in: `folded_leaves`
    block     the path up to the first number that varies, else all but the last part of the path
    bytes on a device of a leaf = bytes / product of the sizes of the axes that split it
                                                                         -> in: `LeafRow`
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
import math
import re
from typing import Final

from automap.plan.checks import Spec
from automap.plan.explain import decision_text, spec_text
from automap.plan.parts import LeafRecord
from automap.plan.pipeline import InsideRecord
from automap.plan.record import PlanRecord
from automap.quantities import bytes_text


_PARTS: Final = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[([^\]]*)\]|\.([^.\[]+)")
_DIGITS: Final = re.compile(r"\d+")
_TYPE_BITS: Final = re.compile(r"[a-z]+(\d+)")
# Of `bool`, and of a random key, whose two words JAX's default generator has.
_OTHER_BITS: Final = {"bool": 8, "key": 64}
_MOST_REASONS: Final = 4
_FOLDED: Final = "\0"


@dataclass(frozen=True, kw_only=True)
class LeafRow:
    """Leaves that are alike.

    - `paths`: of all of them, as in the plan.
    - `block`, `name`: the layer that they are in and what they are called there; ranges of numbers
      stand as `0..23`.
    - `shape`, `dtype`, `role`, `spec`: of each of them.
    - `parts`: devices that one of them is split over.
    - `leaf_bytes`: of one of them, whole.
    """

    paths: tuple[str, ...]
    block: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    spec: Spec
    parts: int
    leaf_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Of all of them, whole."""
        return self.leaf_bytes * len(self.paths)

    @property
    def device_bytes(self) -> int:
        """Of all of them, on one device."""
        return math.ceil(self.leaf_bytes / self.parts) * len(self.paths)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes that split them, in the order of dimensions."""
        return tuple(axis for axes in self.spec for axis in axes or ())


def folded_leaves(plan: PlanRecord) -> list[LeafRow]:
    """Rows of a plan's inputs, in the order in which each first stands."""
    groups: dict[tuple[LeafRecord, int], list[LeafRecord]] = {}
    for leaf, parts in _split_leaves(plan):
        alike = replace(leaf, path=_pattern(leaf.path))
        groups.setdefault((alike, parts), []).append(leaf)
    return [_row(group, parts=parts) for (_, parts), group in groups.items()]


def leaf_text(row: LeafRow, plan: PlanRecord) -> str:
    """All about a row of leaves, line by line: what it is, its split, its bytes, and why."""
    return "\n".join([*_leaf_lines(row, plan), *_reasons(row, plan)])


def _leaf_lines(row: LeafRow, plan: PlanRecord) -> list[str]:
    """What a row of leaves is, how it is split, and its bytes."""
    count = len(row.paths)
    times = f"{count} x " if count > 1 else ""
    having = "every device" if plan.pipeline is None else "each device of its stage"
    over = f"split over {row.parts} devices" if row.parts > 1 else f"whole on {having}"
    return [
        f"{row.block}.{row.name}",
        f"{row.role}, {times}{row.dtype}[{','.join(map(str, row.shape))}], {over}",
        f"spec {spec_text(row.spec)}",
        f"{bytes_text(row.whole_bytes)}, of which {bytes_text(row.device_bytes)} on a device",
    ]


def _reasons(row: LeafRow, plan: PlanRecord) -> list[str]:
    """Why: the decisions that cover the first leaf of a row, each with what it costs otherwise."""
    covering = [each for each in plan.decisions if row.paths[0] in each.covers]
    texts = [f"{decision_text(plan, each)}: {each.reason}" for each in covering[:_MOST_REASONS]]
    rest = len(covering) - len(texts)
    return texts + ([f"and {rest} decisions more"] if rest > 0 else [])


def axis_names(plan: PlanRecord) -> list[str]:
    """The axes that leaves may be split over: the mesh's, and those of a pipeline's stages."""
    names = dict.fromkeys(name for name, _ in plan.mesh.axes)
    for inside in _insides(plan):
        names |= dict.fromkeys(name for name, _ in inside.mesh.axes)
    return list(names)


def _insides(plan: PlanRecord) -> Iterator[InsideRecord]:
    for stage in plan.pipeline.stages if plan.pipeline else ():
        if stage.inside is not None:
            yield stage.inside


def _split_leaves(plan: PlanRecord) -> Iterator[tuple[LeafRecord, int]]:
    """Each input as it is split, over the mesh or inside of the first stage that has it, and over
    how many devices.
    """
    inside_spec: dict[str, tuple[Spec, Mapping[str, int]]] = {}
    for inside in _insides(plan):
        sizes = dict(inside.mesh.axes)
        for leaf in inside.inputs:
            inside_spec.setdefault(leaf.path, (leaf.spec, sizes))
    whole = dict(plan.mesh.axes)
    for leaf in plan.inputs:
        spec, sizes = inside_spec.get(leaf.path, (leaf.spec, whole))
        yield replace(leaf, spec=spec), math.prod(sizes[a] for axes in spec for a in axes or ())


def _pattern(path: str) -> str:
    """The path with all numbers left out but that of the argument, its first."""
    head = _DIGITS.match(path, 1)
    start = head.end() if head and path.startswith("[") else 0
    return path[:start] + _DIGITS.sub(_FOLDED, path[start:])


def _row(group: Sequence[LeafRecord], *, parts: int) -> LeafRow:
    first = group[0]
    names, varies = _joined_parts([leaf.path for leaf in group])
    # Behind the argument's number: everything is below that.
    at = next((i + 1 for i, is_varied in enumerate(varies) if is_varied), len(names) - 1)
    # A path may be nothing but the varied part, or the argument itself.
    at = min(max(at, 0), len(names) - 1)
    return LeafRow(
        paths=tuple(leaf.path for leaf in group),
        block=".".join(names[:at]) or "inputs",
        name=".".join(names[at:]) or first.path,
        shape=first.shape,
        dtype=first.dtype,
        role=first.role,
        spec=first.spec,
        parts=parts,
        leaf_bytes=math.ceil(_bits(first.dtype) * math.prod(first.shape) / 8),
    )


def _bits(dtype: str) -> int:
    """Bits of an element: the number in the type's name, as in `float8_e4m3fn`."""
    named = _TYPE_BITS.match(dtype)
    return int(named[1]) if named else _OTHER_BITS[dtype.partition("<")[0]]


def _joined_parts(paths: Sequence[str]) -> tuple[list[str], list[bool]]:
    """The parts of alike paths without the argument's number, and which of them vary."""
    split = [[next(filter(None, m), "") for m in _PARTS.findall(path)] for path in paths]
    columns = list(zip(*split, strict=True))
    # `[0]` is the argument: what all paths of it begin with says nothing.
    if len(columns) > 1 and columns[0][0].isdecimal():
        columns = columns[1:]
    joined = [_joined(column) for column in columns] or [paths[0]]
    return joined, [len(set(column)) > 1 for column in columns] or [False]


def _joined(column: Sequence[str]) -> str:
    """One part of alike paths: `layer_0..23`, or `layer_0,2,5` where numbers are missing."""
    texts = list(dict.fromkeys(column))
    numbers = [[int(n) for n in _DIGITS.findall(text)] for text in texts]
    if len(texts) == 1:
        return texts[0]
    shown = []
    for values in map(sorted, map(set, zip(*numbers, strict=True))):
        first, last = values[0], values[-1]
        is_range = len(values) == last - first + 1
        shown.append(
            f"{first}" if first == last else f"{first}..{last}" if is_range else _listed(values)
        )
    pieces = iter(shown)
    return _DIGITS.sub(lambda _: next(pieces), texts[0])


def _listed(values: Sequence[int]) -> str:
    listed = ",".join(map(str, values[:4]))
    return listed + (f",..{values[-1]}" if len(values) > 4 else "")
