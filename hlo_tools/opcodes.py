"""What each opcode is: one table for reading, rules, kernels and every analysis.

An opcode has a *kind*, which says what an op does with its operands, and *traits*, each of which
says one thing that an analysis may conclude. The sets at the end are read from the table. Nothing
else lists opcodes, but for tables of functions by opcode (rules, checks, handlers of flattening).
Code that treats a single opcode in a way of its own asks for it by its constant; only readers of
the structure of programs (parameters, tuples, calls) spell what they read.

A sharding rule has three states (`hlo_tools.rules`): ops of `NO_RULE_NEEDED` need none, those for
which `RULES` has a function have one, and any other op is unknown, also one that is not listed
here.

Names are HLO's, and of these ops that flattening makes (`hlo_tools.graph`):

    while, while-exit               a loop hands out what it carries, and ends with it
    conditional, conditional-exit   a branch, likewise
    manual, manual-exit             each device goes on with its part of each array (`shard_map`)
    sharding-constraint             hands its operand on in the sharding that its name says
    outer-product                   a dot that sums over nothing: compilers multiply its operands
                                    element by element, in the kernel of what reads the result
    matrix-vector                   a dot of which one operand has no dimension of its own, where a
                                    backend sums it as a reduction
                                    (`hlo_tools.analyses.matrix_vector`)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, Flag, auto


LOOP_ENTER = "while"
LOOP_EXIT = "while-exit"
BRANCH_ENTER = "conditional"
BRANCH_EXIT = "conditional-exit"
MANUAL_ENTER = "manual"
MANUAL_EXIT = "manual-exit"
CONSTRAINT = "sharding-constraint"

BROADCAST = "broadcast"
CONCATENATE = "concatenate"
CONSTANT = "constant"
CONVERT = "convert"
CONVOLUTION = "convolution"
COPY = "copy"
DOT = "dot"
DYNAMIC_SLICE = "dynamic-slice"
DYNAMIC_UPDATE_SLICE = "dynamic-update-slice"
EXPONENTIAL = "exponential"
FFT = "fft"
GATHER = "gather"
IS_FINITE = "is-finite"
MATRIX_VECTOR = "matrix-vector"
OUTER_PRODUCT = "outer-product"
PAD = "pad"
RAGGED_DOT = "ragged-dot"
RESHAPE = "reshape"
REVERSE = "reverse"
SCATTER = "scatter"
SELECT_AND_SCATTER = "select-and-scatter"
SLICE = "slice"
SORT = "sort"
TOP_K = "topk"
TRANSPOSE = "transpose"
ALL_GATHER = "all-gather"
ALL_REDUCE = "all-reduce"
ALL_TO_ALL = "all-to-all"
COLLECTIVE_PERMUTE = "collective-permute"
REDUCE_SCATTER = "reduce-scatter"
CUSTOM_CALL = "custom-call"
# Nothing is fused over them, and what they hand on is in memory.
BARRIERS = ("opt-barrier", "optimization-barrier")

# How the target of the custom call begins that a constraint is made of; its rest is the sharding.
CONSTRAINT_TARGET = f"{CONSTRAINT}:"


class Kind(Enum):
    """What an op does with its operands."""

    ELEMENTWISE = "makes each element of the elements at the same place"
    PRODUCER = "makes elements of no data, so that any device can make any part"
    RANDOM = "makes elements of a key or a counter"
    MOVEMENT = "moves elements to other places or devices, repeats or drops some"
    IDENTITY = "hands its operands on as they are"
    CONTRACTION = "multiplies two operands and sums along their common dimensions"
    OUTER = "multiplies each element of one operand with several of the other"
    LOOKUP = "reads or writes the places that an operand of indices names"
    REDUCTION = "combines the elements along whole dimensions"
    WINDOW = "combines the elements of windows"
    ORDERING = "orders a dimension"
    MATRIX = "works on whole matrices, or transforms whole dimensions"
    COLLECTIVE = "exchanges data between devices, or waits for that"
    CALL = "runs another computation, or code that the backend knows by name"
    STRUCTURE = "enters or leaves a loop, a branch or a shard_map"
    TUPLE = "packs and unpacks tuples, or is an argument"
    TOKEN = "orders effects, or sends data away"
    TRANSFER = "brings data in, or moves it beside other work"


class Trait(Flag):
    """What may be concluded from an opcode."""

    NONE = 0
    # Dimensions of several tensors meet in its iteration space: where most of the work is.
    ITERATES = auto()
    # Works over whole dimensions of what it reads; any other op makes an element of few.
    WHOLE_DIMENSIONS = auto()
    # XLA runs it as a kernel of its own, whose result is in memory.
    OWN_KERNEL = auto()
    # Reads through the elementwise ops before it, but its result is in memory.
    STORES_RESULT = auto()
    # Reads after it has begun to write, so that its result needs a place of its own.
    KEEPS_OPERANDS = auto()
    # A kernel that is given its result loads its first operand: a cast, another order, a part.
    VIEW = auto()
    # Looks at a part of its first operand only, as large as its result.
    READS_PART = auto()
    # Reads or writes a slice at an offset that is known when it runs.
    AT_RUN_TIME_OFFSET = auto()
    # Makes no floating point operations.
    NO_FLOPS = auto()
    # Its floating point operations are one for each element read, not one for each written.
    FLOPS_BY_READS = auto()
    # Calls a computation that combines two elements.
    COMBINES = auto()
    # Its result is elements of its operands, maybe cast: rounding these before is rounding it.
    KEEPS_NUMBERS = auto()
    # What it makes of a parameter is still stored as the parameter is.
    CARRIES_PARAMETER = auto()
    # Hands on every element of its operand once, maybe in another type or order.
    EACH_ELEMENT = auto()
    # Hands on every element at its place.
    SAME_PLACES = auto()
    # Hands on every element in its own type, in another order.
    REORDERS = auto()
    # What it makes of a scalar is the same number.
    SAME_NUMBER = auto()
    # Makes each element of one element of its operand, at any place.
    ELEMENT_BY_ELEMENT = auto()
    # The partitioner sums its partial results over all mesh axes by one collective.
    SUMS_AT_ONCE = auto()
    # The partitioner sums its partial results factor by factor.
    SUMS_APART = auto()
    # A product whose rows all meet the same matrix: it runs at a matrix unit's full rate.
    DENSE = auto()
    # Says which devices it joins: a collective, or the start of one.
    JOINS_DEVICES = auto()
    # Each device sends another part to each other one.
    EXCHANGES = auto()
    # Makes the same of two elements in either order, and of many in any: partial results combine.
    COMMUTES = auto()
    # Frequent in programs, and without attributes of its own.
    PLAIN = auto()
    # Takes no time of its own on a device, or runs beside what does.
    NO_TIME = auto()


@dataclass(frozen=True, slots=True)
class Opcode:
    """A row of the table; `n_operands` of elementwise ops, None for any number."""

    name: str
    kind: Kind
    traits: Trait = Trait.NONE
    n_operands: int | None = None


def _rows(
    names: str, kind: Kind, traits: Trait = Trait.NONE, n_operands: int | None = None
) -> tuple[Opcode, ...]:
    """Rows that differ in their names alone."""
    return tuple(Opcode(name, kind, traits, n_operands) for name in names.split())


_T = Trait
# What several kinds of movement have in common.
_MOVED = _T.NO_FLOPS | _T.KEEPS_NUMBERS
_REORDERED = (
    _MOVED | _T.VIEW | _T.CARRIES_PARAMETER | _T.EACH_ELEMENT | _T.REORDERS | _T.ELEMENT_BY_ELEMENT
)
_KERNEL = _T.OWN_KERNEL | _T.KEEPS_OPERANDS
_PRODUCT = _KERNEL | _T.ITERATES | _T.WHOLE_DIMENSIONS

_ROWS: tuple[Opcode, ...] = (
    *_rows(
        "abs cosine exponential log logistic negate not rsqrt sign sine sqrt tanh",
        Kind.ELEMENTWISE,
        _T.PLAIN,
        n_operands=1,
    ),
    *_rows(
        """acos acosh asin asinh atanh bitcast-convert cbrt ceil cosh count-leading-zeros erf
        exponential-minus-one floor imag is-finite log-plus-one popcnt real round-nearest-afz
        round-nearest-even sinh tan""",
        Kind.ELEMENTWISE,
        n_operands=1,
    ),
    *_rows(
        CONVERT,
        Kind.ELEMENTWISE,
        _T.VIEW
        | _T.KEEPS_NUMBERS
        | _T.CARRIES_PARAMETER
        | _T.EACH_ELEMENT
        | _T.SAME_PLACES
        | _T.SAME_NUMBER
        | _T.PLAIN,
        n_operands=1,
    ),
    *_rows("reduce-precision", Kind.ELEMENTWISE, _T.VIEW | _T.CARRIES_PARAMETER, n_operands=1),
    *_rows(
        "add and maximum minimum multiply or xor",
        Kind.ELEMENTWISE,
        _T.PLAIN | _T.COMMUTES,
        n_operands=2,
    ),
    *_rows("divide power subtract", Kind.ELEMENTWISE, _T.PLAIN, n_operands=2),
    *_rows(
        """atan2 compare complex remainder shift-left shift-right-arithmetic shift-right-logical
        stochastic-convert""",
        Kind.ELEMENTWISE,
        n_operands=2,
    ),
    *_rows("select", Kind.ELEMENTWISE, _T.PLAIN, n_operands=3),
    *_rows("clamp", Kind.ELEMENTWISE, n_operands=3),
    *_rows("map", Kind.ELEMENTWISE),
    *_rows(f"{CONSTANT} iota", Kind.PRODUCER, _T.NO_FLOPS | _T.PLAIN | _T.NO_TIME),
    *_rows("partition-id replica-id", Kind.PRODUCER, _T.NO_TIME),
    *_rows("rng rng-bit-generator", Kind.RANDOM, _KERNEL),
    *_rows("rng-get-and-update-state", Kind.RANDOM),
    *_rows("bitcast", Kind.MOVEMENT, _REORDERED | _T.SAME_NUMBER | _T.NO_TIME),
    *_rows(RESHAPE, Kind.MOVEMENT, _REORDERED | _T.SAME_NUMBER | _T.PLAIN),
    *_rows(TRANSPOSE, Kind.MOVEMENT, _REORDERED | _T.KEEPS_OPERANDS | _T.PLAIN),
    *_rows(
        CONSTRAINT,
        Kind.MOVEMENT,
        _MOVED | _T.VIEW | _T.CARRIES_PARAMETER | _T.EACH_ELEMENT | _T.SAME_PLACES,
    ),
    *_rows(BROADCAST, Kind.MOVEMENT, _T.NO_FLOPS | _T.VIEW | _T.ELEMENT_BY_ELEMENT | _T.PLAIN),
    *_rows(CONCATENATE, Kind.MOVEMENT, _MOVED | _T.PLAIN),
    *_rows(f"{PAD} {REVERSE}", Kind.MOVEMENT, _MOVED),
    *_rows(SLICE, Kind.MOVEMENT, _MOVED | _T.VIEW | _T.READS_PART),
    *_rows(
        DYNAMIC_SLICE,
        Kind.MOVEMENT,
        _MOVED | _T.VIEW | _T.READS_PART | _T.CARRIES_PARAMETER | _T.AT_RUN_TIME_OFFSET | _T.PLAIN,
    ),
    *_rows(
        DYNAMIC_UPDATE_SLICE,
        Kind.MOVEMENT,
        _MOVED | _T.STORES_RESULT | _T.AT_RUN_TIME_OFFSET | _T.PLAIN,
    ),
    *_rows("dynamic-reshape", Kind.MOVEMENT),
    *_rows(
        COPY,
        Kind.IDENTITY,
        _T.NO_FLOPS | _T.EACH_ELEMENT | _T.SAME_PLACES | _T.SAME_NUMBER | _T.PLAIN,
    ),
    *_rows(" ".join((*BARRIERS, "copy-start copy-done")), Kind.IDENTITY),
    *_rows(DOT, Kind.CONTRACTION, _PRODUCT | _T.DENSE | _T.SUMS_APART),
    *_rows(CONVOLUTION, Kind.CONTRACTION, _PRODUCT | _T.DENSE),
    *_rows(RAGGED_DOT, Kind.CONTRACTION, _PRODUCT),
    *_rows(OUTER_PRODUCT, Kind.OUTER, _T.ITERATES | _T.ELEMENT_BY_ELEMENT),
    *_rows(GATHER, Kind.LOOKUP, _PRODUCT | _T.NO_FLOPS | _T.READS_PART),
    *_rows(
        SCATTER,
        Kind.LOOKUP,
        # It adds to the table that it is given, in place.
        (_PRODUCT & ~_T.KEEPS_OPERANDS) | _T.COMBINES | _T.SUMS_AT_ONCE | _T.SUMS_APART,
    ),
    *_rows(
        "reduce",
        Kind.REDUCTION,
        _T.WHOLE_DIMENSIONS
        | _T.STORES_RESULT
        | _T.KEEPS_OPERANDS
        | _T.FLOPS_BY_READS
        | _T.COMBINES
        | _T.SUMS_AT_ONCE
        | _T.SUMS_APART
        | _T.PLAIN,
    ),
    *_rows(
        MATRIX_VECTOR,
        Kind.REDUCTION,
        _T.ITERATES
        | _T.WHOLE_DIMENSIONS
        | _T.STORES_RESULT
        | _T.KEEPS_OPERANDS
        | _T.FLOPS_BY_READS
        | _T.SUMS_APART,
    ),
    *_rows(
        "reduce-window",
        Kind.WINDOW,
        _KERNEL | _T.WHOLE_DIMENSIONS | _T.FLOPS_BY_READS | _T.COMBINES,
    ),
    *_rows(SELECT_AND_SCATTER, Kind.WINDOW, _KERNEL | _T.FLOPS_BY_READS | _T.COMBINES),
    *_rows(f"{SORT} {TOP_K}", Kind.ORDERING, _KERNEL),
    *_rows(f"cholesky {FFT} triangular-solve", Kind.MATRIX, _KERNEL | _T.ITERATES),
    *_rows(
        " ".join((ALL_GATHER, ALL_REDUCE, COLLECTIVE_PERMUTE, REDUCE_SCATTER)),
        Kind.COLLECTIVE,
        _KERNEL | _T.JOINS_DEVICES | _T.NO_TIME,
    ),
    *_rows(
        ALL_TO_ALL,
        Kind.COLLECTIVE,
        _KERNEL | _T.JOINS_DEVICES | _T.EXCHANGES | _T.NO_TIME,
    ),
    *_rows("ragged-all-to-all", Kind.COLLECTIVE, _T.JOINS_DEVICES | _T.EXCHANGES | _T.NO_TIME),
    *_rows(
        """collective-broadcast all-gather-start all-reduce-start
        collective-permute-start""",
        Kind.COLLECTIVE,
        _T.JOINS_DEVICES | _T.NO_TIME,
    ),
    *_rows("all-gather-done all-reduce-done collective-permute-done", Kind.COLLECTIVE),
    *_rows("call fusion", Kind.CALL, _T.PLAIN),
    *_rows("async-start async-update async-done", Kind.CALL),
    *_rows(CUSTOM_CALL, Kind.CALL, _KERNEL | _T.ITERATES),
    *_rows(
        " ".join((LOOP_ENTER, LOOP_EXIT, BRANCH_ENTER, BRANCH_EXIT, MANUAL_ENTER, MANUAL_EXIT)),
        Kind.STRUCTURE,
        _T.NO_TIME,
    ),
    *_rows("get-tuple-element parameter tuple", Kind.TUPLE, _T.PLAIN | _T.NO_TIME),
    *_rows("after-all", Kind.TOKEN, _T.NO_TIME),
    *_rows("add-dependency domain send send-done", Kind.TOKEN),
    *_rows("outfeed", Kind.TOKEN, _KERNEL),
    *_rows("infeed", Kind.TRANSFER, _KERNEL),
    *_rows("slice-start slice-done", Kind.TRANSFER, _T.NO_TIME),
)
OPCODES: Mapping[str, Opcode] = {row.name: row for row in _ROWS}


def with_kind(*kinds: Kind) -> frozenset[str]:
    """The opcodes of some kinds."""
    return frozenset(row.name for row in OPCODES.values() if row.kind in kinds)


def with_trait(trait: Trait) -> frozenset[str]:
    """The opcodes that have a trait."""
    return frozenset(row.name for row in OPCODES.values() if trait in row.traits)


def elementwise(n_operands: int) -> frozenset[str]:
    """The elementwise opcodes of so many operands."""
    return frozenset(row.name for row in OPCODES.values() if row.n_operands == n_operands)


ELEMENTWISE = with_kind(Kind.ELEMENTWISE)
PRODUCERS = with_kind(Kind.PRODUCER)
RANDOM = with_kind(Kind.RANDOM)
IDENTITIES = with_kind(Kind.IDENTITY)
CONTRACTIONS = with_kind(Kind.CONTRACTION)
DENSE_CONTRACTIONS = with_trait(Trait.DENSE)
REDUCTIONS = with_kind(Kind.REDUCTION)
MATRIX_OPS = with_kind(Kind.MATRIX)
COLLECTIVES = with_kind(Kind.COLLECTIVE)
JOINS_DEVICES = with_trait(Trait.JOINS_DEVICES)
EXCHANGES = with_trait(Trait.EXCHANGES)
COMMUTATIVE = with_trait(Trait.COMMUTES)
STRUCTURAL = with_kind(Kind.STRUCTURE)
NO_RULE_NEEDED = with_kind(Kind.STRUCTURE, Kind.TOKEN)

ITERATING = with_trait(Trait.ITERATES)
WHOLE_DIMENSIONS = with_trait(Trait.WHOLE_DIMENSIONS)
OWN_KERNEL = with_trait(Trait.OWN_KERNEL)
STORES_RESULT = with_trait(Trait.STORES_RESULT)
KEEPS_OPERANDS = with_trait(Trait.KEEPS_OPERANDS)
VIEWS = with_trait(Trait.VIEW)
READS_PART = with_trait(Trait.READS_PART)
SLICES = READS_PART & with_kind(Kind.MOVEMENT)
AT_RUN_TIME_OFFSET = with_trait(Trait.AT_RUN_TIME_OFFSET)
NO_FLOPS = with_trait(Trait.NO_FLOPS)
FLOPS_BY_READS = with_trait(Trait.FLOPS_BY_READS)
COMBINES = with_trait(Trait.COMBINES)
KEEPS_NUMBERS = with_trait(Trait.KEEPS_NUMBERS)
CARRIES_PARAMETER = with_trait(Trait.CARRIES_PARAMETER)
EACH_ELEMENT = with_trait(Trait.EACH_ELEMENT)
SAME_PLACES = with_trait(Trait.SAME_PLACES)
REORDERS = with_trait(Trait.REORDERS)
SAME_NUMBER = with_trait(Trait.SAME_NUMBER)
ELEMENT_BY_ELEMENT = ELEMENTWISE | PRODUCERS | with_trait(Trait.ELEMENT_BY_ELEMENT)
SUMS_AT_ONCE = with_trait(Trait.SUMS_AT_ONCE)
SUMS_APART = with_trait(Trait.SUMS_APART)
PLAIN = with_trait(Trait.PLAIN)
NO_TIME = with_trait(Trait.NO_TIME)
