"""The same program by every route, and damaged files."""

from hypothesis import given, strategies as st
import jax
import jax.numpy as jnp
import pytest

from hlo_tools.errors import HloError
from hlo_tools.flatten import flatten
from hlo_tools.module import Module
from hlo_tools.proto import decode_module
from hlo_tools.read import read_bytes, read_module


def _step(w, table, x, ids):
    def body(carry, _):
        return jnp.tanh(carry @ w), carry.sum()

    h, sums = jax.lax.scan(body, x, None, length=5)
    return h + table[ids], sums


def _lowered():
    shapes = ((16, 16), (32, 16), (8, 16))
    arrays = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    step = jax.jit(_step, keep_unused=True, donate_argnums=2)
    return step.lower(*arrays, jax.ShapeDtypeStruct((8,), jnp.int32))


def _proto() -> bytes:
    return _lowered().compiler_ir("hlo").as_serialized_hlo_module_proto()


PROTO = _proto()


def _opcodes(module: Module) -> list[str]:
    return sorted(op.opcode for op in flatten(module).ops)


def test_every_route_gives_the_same_program(tmp_path):
    lowered = _lowered()
    computation = lowered.compiler_ir("hlo")
    (tmp_path / "m.before_optimizations.hlo.pb").write_bytes(PROTO)
    routes = [
        read_bytes(PROTO, "proto"),
        read_bytes(computation.as_hlo_text().encode(), "text"),
        read_bytes(str(lowered.compiler_ir("stablehlo")).encode(), "mlir"),
        read_module(tmp_path),
        # --xla_dump_hlo_as_proto wraps the module in field 1.
        read_bytes(b"\x0a" + _varint(len(PROTO)) + PROTO, "wrapped"),
    ]
    assert all(_opcodes(m) == _opcodes(routes[0]) for m in routes)


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def test_loops_have_their_trip_count():
    graph = flatten(decode_module(PROTO))
    assert {op.trip_count for op in graph.ops if op.opcode == "dot"} == {5}
    assert graph.assumptions == ()


def test_dot_and_gather_dimension_numbers_are_read():
    instructions = [i for c in decode_module(PROTO).computations.values() for i in c.instructions]
    dot = next(i.attributes.dot for i in instructions if i.opcode == "dot")
    assert (dot.lhs_contracting, dot.rhs_contracting, dot.lhs_batch) == ((1,), (0,), ())
    gather = next(i for i in instructions if i.opcode == "gather")
    assert gather.attributes.gather.collapsed_slice_dims == (0,)
    assert gather.attributes.gather_slice_sizes == (1, 16)


@pytest.mark.parametrize("at", range(0, len(PROTO), 97))
def test_a_truncated_proto_is_refused(at):
    with pytest.raises(HloError):
        flatten(decode_module(PROTO[:at]))


@given(st.integers(0, len(PROTO) - 1), st.integers(0, 255))
def test_a_damaged_byte_never_raises_anything_else(at, byte):
    data = PROTO[:at] + bytes([byte]) + PROTO[at + 1 :]
    try:
        flatten(decode_module(data))
    except HloError:
        pass


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(HloError):
        read_bytes(data, "random")


def test_missing_and_unknown_files(tmp_path):
    with pytest.raises(HloError, match="No such file"):
        read_module(tmp_path / "absent.pb")
    with pytest.raises(HloError, match="xla_dump_to"):
        read_module(tmp_path)
    with pytest.raises(HloError, match="neither HLO"):
        read_bytes(b"hello", "note.txt")
    with pytest.raises(HloError, match="not valid HLO text"):
        read_bytes(b"HloModule broken\nENTRY", "broken.txt")
