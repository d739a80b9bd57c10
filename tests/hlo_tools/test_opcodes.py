"""Golden sets: what each opcode is was written down in other files before there was one table."""

import pytest

from hlo_tools import opcodes
from hlo_tools.opcodes import OPCODES, Kind, Trait
from hlo_tools.read.operand_checks import ROWS
from hlo_tools.rules import NO_RULE_NEEDED, RULES


UNARY = """abs acos acosh asin asinh atanh bitcast-convert cbrt ceil convert cosh cosine
count-leading-zeros erf exponential exponential-minus-one floor imag is-finite log log-plus-one
logistic negate not popcnt real reduce-precision round-nearest-afz round-nearest-even rsqrt sign
sine sinh sqrt tan tanh"""
BINARY = """add and atan2 compare complex divide maximum minimum multiply or power remainder
shift-left shift-right-arithmetic shift-right-logical stochastic-convert subtract xor"""
PRODUCTS = "dot convolution ragged-dot"
OWN_KERNELS = f"""{PRODUCTS} cholesky custom-call fft gather infeed outfeed reduce-window rng
rng-bit-generator scatter select-and-scatter sort topk triangular-solve all-gather all-reduce
all-to-all collective-permute reduce-scatter"""
JOINING = """all-reduce all-gather reduce-scatter all-to-all collective-permute ragged-all-to-all
collective-broadcast all-reduce-start all-gather-start collective-permute-start"""
STRUCTURAL = "while while-exit conditional conditional-exit manual manual-exit"
GOLDEN = {
    "ELEMENTWISE": f"{UNARY} {BINARY} clamp select map",
    "PRODUCERS": "constant iota partition-id replica-id",
    "RANDOM": "rng rng-bit-generator rng-get-and-update-state",
    "IDENTITIES": "copy opt-barrier optimization-barrier copy-start copy-done",
    "CONTRACTIONS": PRODUCTS,
    "DENSE_CONTRACTIONS": "dot convolution",
    "REDUCTIONS": "reduce matrix-vector",
    "COLLECTIVES": f"{JOINING} all-gather-done all-reduce-done collective-permute-done",
    "JOINS_DEVICES": JOINING,
    "EXCHANGES": "all-to-all ragged-all-to-all",
    "COMMUTATIVE": "add multiply maximum minimum and or xor",
    "STRUCTURAL": STRUCTURAL,
    "NO_RULE_NEEDED": f"{STRUCTURAL} after-all add-dependency outfeed send send-done domain",
    "ITERATING": f"{PRODUCTS} outer-product matrix-vector gather scatter custom-call "
    "cholesky fft triangular-solve",
    "WHOLE_DIMENSIONS": f"{PRODUCTS} scatter gather reduce matrix-vector reduce-window",
    "OWN_KERNEL": OWN_KERNELS,
    "STORES_RESULT": "reduce matrix-vector dynamic-update-slice",
    "KEEPS_OPERANDS": f"{OWN_KERNELS.replace(' scatter', '')} reduce matrix-vector transpose",
    "VIEWS": """convert transpose reshape bitcast broadcast slice dynamic-slice reduce-precision
    sharding-constraint""",
    "READS_PART": "slice dynamic-slice gather",
    "SLICES": "slice dynamic-slice",
    "AT_RUN_TIME_OFFSET": "dynamic-slice dynamic-update-slice",
    "NO_FLOPS": """bitcast broadcast concatenate constant copy dynamic-slice dynamic-update-slice
    gather iota pad reshape reverse slice transpose sharding-constraint""",
    "FLOPS_BY_READS": "reduce matrix-vector reduce-window select-and-scatter",
    "COMBINES": "reduce reduce-window scatter select-and-scatter",
    "KEEPS_NUMBERS": """bitcast concatenate convert dynamic-slice dynamic-update-slice pad reshape
    reverse slice transpose sharding-constraint""",
    "CARRIES_PARAMETER": """convert transpose reshape bitcast dynamic-slice reduce-precision
    sharding-constraint""",
    "EACH_ELEMENT": "convert transpose reshape bitcast copy sharding-constraint",
    "SAME_PLACES": "convert copy sharding-constraint",
    "REORDERS": "transpose reshape bitcast",
    "SAME_NUMBER": "copy bitcast convert reshape",
    "ELEMENT_BY_ELEMENT": f"""{UNARY} {BINARY} clamp select map constant iota partition-id
    replica-id broadcast reshape transpose bitcast outer-product""",
    "SUMS_AT_ONCE": "reduce scatter",
    "SUMS_APART": "reduce matrix-vector scatter dot",
    "PLAIN": """abs add and broadcast call concatenate constant convert copy cosine divide
    dynamic-slice dynamic-update-slice exponential fusion get-tuple-element iota log logistic
    maximum minimum multiply negate not or parameter power reduce reshape rsqrt select sign sine
    sqrt subtract tanh transpose tuple xor""",
    "NO_TIME": f"""{STRUCTURAL} {JOINING} after-all bitcast constant get-tuple-element iota
    parameter partition-id replica-id tuple slice-start slice-done""",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_set_is_as_it_was_written_down(name):
    assert getattr(opcodes, name) == set(GOLDEN[name].split())


def test_elementwise_ops_have_the_operands_that_hlo_gives_them():
    counts = {1: UNARY, 2: BINARY, 3: "clamp select"}
    for n_operands, names in counts.items():
        assert opcodes.elementwise(n_operands) == set(names.split())
        for name in names.split():
            assert (ROWS[name].least, ROWS[name].most) == (n_operands, n_operands)
    assert OPCODES["map"].n_operands is None


def test_every_opcode_with_a_rule_is_in_the_table_and_needs_one():
    assert set(RULES) <= set(OPCODES)
    assert not set(RULES) & NO_RULE_NEEDED


@pytest.mark.parametrize("opcode", ["infeed", "copy", "call", "no-such-op"])
def test_other_opcodes_have_no_rule(opcode):
    assert opcode not in RULES and opcode not in NO_RULE_NEEDED


def test_a_name_stands_once_and_every_kind_and_trait_is_used():
    assert len(OPCODES) == len({row.name for row in opcodes._ROWS}) == len(opcodes._ROWS)
    assert {row.kind for row in OPCODES.values()} == set(Kind)
    assert all(opcodes.with_trait(trait) for trait in Trait if trait is not Trait.NONE)
