"""The same program by every route, and damaged files."""

import os
from pathlib import Path
import subprocess
import sys

from hypothesis import given, strategies as st
import jax
import jax.numpy as jnp
import pytest

from hlo_tools.errors import HloError
from hlo_tools.graph import flatten
from hlo_tools.module import NO_ATTRIBUTES, Module
from hlo_tools.read import read_bytes, read_module
from hlo_tools.read.proto import decode_module
from hlo_tools.read.schema import MODULE, SHAPE


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
def test_a_truncated_proto_is_refused_unless_the_program_is_whole(at):
    """Cut between the last fields of the file, which are of no computation, it is a file without
    these.
    """
    try:
        opcodes = _opcodes(decode_module(PROTO[:at]))
    except HloError:
        return
    assert opcodes == _opcodes(decode_module(PROTO))


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


def test_a_damaged_byte_of_a_compiled_module_never_raises_anything_else():
    data = _lowered().compile().runtime_executable().hlo_modules()[0]
    data = data.as_serialized_hlo_module_proto()
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        try:
            decode_module(bytes(damaged))
        except HloError:
            pass


_SCALAR = {"element_type": 11}


def _of_one(shape=_SCALAR, **fields) -> bytes:
    """A module of one instruction; `fields` are those of `hlo_tools.read.schema`."""
    fields = {"name": b"i", "opcode": b"parameter", "id": 1, **fields}
    fields["shape"] = SHAPE.message_class(**shape).SerializeToString()
    computation = {"name": b"c", "id": 1, "root_id": 1, "instructions": [fields]}
    module = MODULE.message_class(name=b"m", entry_id=1, computations=[computation])
    return module.SerializeToString()


def _only(data: bytes):
    ((instruction,),) = (c.instructions for c in decode_module(data).computations.values())
    return instruction


def test_a_wrapper_may_hold_more_than_the_module():
    # Field 3 of a wrapper is the buffer assignment; in a module it is a computation.
    more = b"\x1a" + _varint(len(PROTO)) + PROTO
    wrapped = b"\x0a" + _varint(len(PROTO)) + PROTO + more
    assert repr(decode_module(wrapped)) == repr(decode_module(PROTO))
    with pytest.raises(HloError, match="no HLO module"):
        decode_module(b"\x1a\x00")


def test_names_need_not_be_utf8():
    assert _only(_of_one(name=b"a\xff", metadata={"op_name": b"\x80"})).name == "a\ufffd"


def test_an_empty_sharding_is_one():
    assert _only(_of_one(sharding=b"")).attributes.is_sharded_by_user
    assert _only(_of_one()).attributes is NO_ATTRIBUTES


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (b'{"known_trip_count":{"n":"7"}}', 7),
        (b'{"known_trip_count":{"n":-1}}', 0),
        (b'{"known_trip_count":{"n":Infinity}}', None),
        (b"[" * 100_000, None),
        (b"\xff\x00", None),
        (b"", None),
    ],
)
def test_trip_counts_of_any_backend(config, count):
    data = _of_one(opcode=b"while", backend_config=config)
    assert _only(data).attributes.trip_count == count


def _tuple(depth: int) -> dict:
    shape = _SCALAR
    for _ in range(depth):
        shape = {"element_type": 13, "tuple_shapes": [shape]}
    return shape


def test_tuples_in_tuples():
    shape = _only(_of_one(_tuple(50))).shape
    for _ in range(50):
        (shape,) = shape.elements
    assert shape.dtype == "f32"
    with pytest.raises(HloError):
        decode_module(_of_one(_tuple(200)))


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ({"element_type": 99}, "unknown element type 99"),
        ({"element_type": 11, "dimensions": [-1]}, "impossible dimensions"),
        ({"element_type": 11, "dimensions": [1 << 40, 1 << 40]}, "impossible dimensions"),
        ({"element_type": 11, "dimensions": [1 << 62] * 100_000}, "impossible dimensions"),
    ],
)
def test_impossible_shapes_are_refused(shape, part):
    with pytest.raises(HloError, match=part):
        decode_module(_of_one(shape))


def test_equal_shapes_and_attributes_are_one_object():
    text = """HloModule m
ENTRY %e (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %a = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %b = f32[8,8]{1,0} dot(%a, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    (computation,) = read_bytes(text.encode(), "by hand").computations.values()
    p, a, b = computation.instructions
    assert p.shape is a.shape is b.shape
    assert a.attributes is b.attributes


def test_protobuf_without_its_compiled_part_reads_the_same():
    code = (
        "import sys; from hlo_tools.read import proto; "
        "print(proto.decode_module(sys.stdin.buffer.read()))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=PROTO,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout.decode().strip() == repr(decode_module(PROTO))


def test_missing_and_unknown_files(tmp_path):
    with pytest.raises(HloError, match="No such file"):
        read_module(tmp_path / "absent.pb")
    with pytest.raises(HloError, match="xla_dump_to"):
        read_module(tmp_path)
    with pytest.raises(HloError, match="neither HLO"):
        read_bytes(b"hello", "note.txt")
    with pytest.raises(HloError, match="not valid HLO text"):
        read_bytes(b"HloModule broken\nENTRY", "broken.txt")


@pytest.mark.parametrize("opcode", ["conditional", "while"])
def test_calls_that_do_not_fit_are_refused(opcode):
    def step(x, w):
        y = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), y, None, length=3)[0]

    x = jax.ShapeDtypeStruct((4, 4), "float32")
    data = jax.jit(step).lower(x, x).compiler_ir("hlo").as_serialized_hlo_module_proto()
    module = decode_module(data)
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == opcode:
                instruction.called = instruction.called[:1]
                instruction.operands = instruction.operands[:1]
    with pytest.raises(HloError, match="is not well formed|calls two computations"):
        flatten(module)
