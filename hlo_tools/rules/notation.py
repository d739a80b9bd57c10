"""Rules as text: what `str(rule)` prints and what users write for their own ops.

    bthd,bshd,bshd->bthd replicate=t,s,d

One letter per dimension, a bracket for a dimension of several factors (major first), `1` for a
dimension of size one, `.` for a scalar. A letter on both sides passes, one of the operands only is
summed over, one of the results only is made whole on every device; `reduce=`, `permute=` and
`replicate=` say otherwise.

    flops=2bhtsd efficiency=0.6

A number and letters: the floating point operations of the whole op are the number times the sizes
of the letters (here 2 b h t s d); and the fraction of the device's peak at which they are done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import math
import re

from hlo_tools.errors import HloError
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder, Work


Dims = tuple[int, ...]

_EXAMPLE = "expected operands->results, as ik,kj->ij or b(hd),(hd)e->be replicate=b"
_TENSOR = re.compile(r"\.|(?:[a-zA-Z1]|\([a-zA-Z]+\))+")
_DIM = re.compile(r"[a-zA-Z1]|\([a-zA-Z]+\)")
_FLOPS = re.compile(r"(?P<number>\d{1,6}(?:\.\d{1,6})?)(?P<letters>[a-zA-Z]+)")
_EFFICIENCY = re.compile(r"0\.\d{1,9}|1(?:\.0+)?")


@dataclass(frozen=True, slots=True)
class WorkNotation:
    """`flops=` and `efficiency=` without sizes; `efficiency` 0 is not stated."""

    number: float
    letters: str
    efficiency: float = 0.0


@dataclass(frozen=True, slots=True)
class Notation:
    """A rule without sizes: letters of each dimension of each tensor, and kinds that are stated."""

    text: str
    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    kinds: tuple[tuple[str, FactorKind], ...]
    work: WorkNotation | None = None

    def fits(self, operands: Sequence[Dims], results: Sequence[Dims]) -> bool:
        """Whether the rule can be that of an op with these shapes."""
        try:
            self.rule("", list(operands), list(results))
        except HloError:
            return False
        return True

    def rule(self, name: str, operands: list[Dims], results: list[Dims]) -> Rule:
        """The rule for these shapes. Raises `HloError` if they do not fit, naming the op."""
        ranks = [len(t) for t in (*operands, *results)]
        stated = [len(t) for t in (*self.operands, *self.results)]
        if len(operands) != len(self.operands) or ranks != stated:
            raise HloError(
                f"rule {self.text!r} of {name}: it is used on "
                f"{shapes_text(operands, results)}, "
                "which has other numbers of tensors or dimensions"
            )
        tensors = list(zip((*self.operands, *self.results), (*operands, *results)))
        sizes = self._sizes(name, tensors)
        builder = RuleBuilder(operands, results)
        number = {x: builder.add(size=n, kind=self._kind(x)) for x, n in sizes.items()}
        for tensor, (dims, shape) in enumerate(tensors):
            for dim, letters in enumerate(dims):
                # As in every rule, a dimension of size one has no factors.
                factors = tuple(number[x] for x in letters if sizes.get(x, 1) > 1)
                builder.set(tensor, dim, factors if shape[dim] > 1 else ())
        return replace(builder.build(), work=self._work(sizes))

    def _work(self, sizes: dict[str, int]) -> Work | None:
        if self.work is None:
            return None
        # A dimension of size one has no letter with a size.
        iterations = math.prod(sizes.get(letter, 1) for letter in self.work.letters)
        return Work(round(self.work.number * iterations), self.work.efficiency)

    def _kind(self, letter: str) -> FactorKind:
        stated = dict(self.kinds).get(letter)
        if stated is not None:
            return stated
        read, made = (
            any(letter in dim for tensor in side for dim in tensor)
            for side in (self.operands, self.results)
        )
        if read and made:
            return FactorKind.PASSTHROUGH
        return FactorKind.REDUCTION if read else FactorKind.REPLICATION

    def _sizes(self, name: str, tensors: list[tuple[tuple[str, ...], Dims]]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        places = [(x, n) for dims, shape in tensors for x, n in zip(dims, shape)]
        for letters, size in places:
            if len(letters) == 1 and letters != "1":
                known = sizes.setdefault(letters, size)
                if known != size and self._kind(letters) is FactorKind.PASSTHROUGH:
                    raise HloError(
                        f"rule {self.text!r} of {name}: {letters} is {known} in one place and "
                        f"{size} in another"
                    )
                sizes[letters] = max(known, size)
        # Letters that stand alone have given sizes; a merged dimension may have one unknown letter
        # left.
        for letters, size in places:
            self._solve(name, letters, size, sizes)
        return sizes

    def _solve(self, name: str, letters: str, size: int, sizes: dict[str, int]) -> None:
        """Find the one unknown factor of a merged dimension, and check the product."""
        unknown = [x for x in letters if x not in sizes and x != "1"]
        product = 1
        for letter in letters:
            product *= sizes.get(letter, 1)
        if len(unknown) == 1 and size % product == 0:
            sizes[unknown[0]] = size // product
        elif unknown or (len(letters) > 1 and product != size) or (letters == "1" and size != 1):
            raise HloError(
                f"rule {self.text!r} of {name}: {letters} does not make a dimension of {size}; "
                "each "
                "of its letters but one must stand alone elsewhere, and their product must be it"
            )


def parse_notation(text: str) -> Notation:
    """Read a rule. Raises `HloError` with what was got and what is expected."""
    equation, *stated = text.split() or [""]
    left, arrow, right = equation.partition("->")
    if not arrow:
        raise HloError(f"rule {text!r}: {_EXAMPLE}")
    operands, results = (_side(text, side) for side in (left, right))
    letters = {x for tensor in (*operands, *results) for dim in tensor for x in dim} - {"1"}
    work_words = {word.partition("=")[0]: word for word in stated if word.startswith(_WORK)}
    kinds = dict(
        pair
        for word in stated
        if word not in work_words.values()
        for pair in _stated(text, word, letters)
    )
    return Notation(text, operands, results, tuple(kinds.items()), _work(text, work_words, letters))


_WORK = ("flops=", "efficiency=")


def _work(text: str, words: dict[str, str], letters: set[str]) -> WorkNotation | None:
    if not words:
        return None
    flops = _FLOPS.fullmatch(words.get("flops", "").partition("=")[2])
    if flops is None or not set(flops["letters"]) <= letters:
        raise HloError(
            f"rule {text!r}: expected flops=NUMBER and letters of the tensors, as flops=2ikj, "
            "which efficiency= needs too"
        )
    share = words.get("efficiency", "efficiency=").partition("=")[2]
    if "efficiency" in words and (not _EFFICIENCY.fullmatch(share) or not float(share)):
        raise HloError(
            f"rule {text!r}: cannot read efficiency={share}; allowed: a fraction of the device's "
            "peak above 0 and up to 1, as efficiency=0.6"
        )
    return WorkNotation(float(flops["number"]), flops["letters"], float(share or 0))


def _side(text: str, side: str) -> tuple[tuple[str, ...], ...]:
    tensors = side.split(",") if side else []
    for tensor in tensors:
        if not _TENSOR.fullmatch(tensor):
            raise HloError(f"rule {text!r}: cannot read {tensor!r}; {_EXAMPLE}")
    return tuple(
        () if t == "." else tuple(dim.strip("()") for dim in _DIM.findall(t)) for t in tensors
    )


def _stated(text: str, word: str, letters: set[str]) -> list[tuple[str, FactorKind]]:
    name, equals, given = word.partition("=")
    kinds = {k.value: k for k in FactorKind}
    names = given.split(",")
    if not equals or name not in kinds:
        raise HloError(
            f"rule {text!r}: cannot read {word!r}; allowed: {', '.join(kinds)} =a,b, and flops=2ab "
            "with efficiency=0.6"
        )
    if not set(names) <= letters:
        raise HloError(f"rule {text!r}: {word!r} names letters that the tensors do not have")
    return [(x, kinds[name]) for x in names]


def shapes_text(operands: Sequence[Dims], results: Sequence[Dims]) -> str:
    """`[8, 4],[4]->[8]`."""
    sides = (",".join(str(list(t)) for t in side) for side in (operands, results))
    return "->".join(sides)
