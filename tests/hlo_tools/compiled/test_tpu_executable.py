"""Programs put into executables as libtpu writes them, and back."""

import json

from hypothesis import given, settings, strategies as st
import pytest

from hlo_tools.compiled.estimates import read_cycles
from hlo_tools.compiled.tpu_executable import optimized_module
from hlo_tools.errors import HloError
from hlo_tools.graph import flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read import schema
from hlo_tools.read.proto import decode_module, module_message


_BLOCK, _HEADER = 1 << 16, 24
_CONFIG = json.dumps({"window_config": {"estimated_cycles": "70"}})
PROGRAM = f"""
HloModule jit_step, is_scheduled=true

%gather (t: f32[8], i: s32[8]) -> f32[8] {{
  %t = f32[8] parameter(0)
  %i = s32[8] parameter(1)
  ROOT %taken = f32[8] custom-call(%t, %i), custom_call_target="take"
}}

ENTRY %main (t: f32[8], i: s32[8]) -> f32[8] {{
  %t = f32[8] parameter(0)
  %i = s32[8] parameter(1)
  %begun = ((f32[8], s32[8]), f32[8], s32[]) async-start(%t, %i), calls=%gather
  %going = ((f32[8], s32[8]), f32[8], s32[]) async-update(%begun)
  %taken = f32[8] async-done(%going)
  %one = f32[8] negate(%taken), backend_config={_CONFIG}
  ROOT %two = f32[8] exponential(%one), backend_config={_CONFIG}
}}
"""


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _executable(module: bytes, before: int) -> bytes:
    """A module in an HloProto in a Riegeli file after a number of other bytes, with other modules
    beside it.
    """
    wrapped = b"\n" + _varint(len(module)) + module
    source = text_to_proto(PROGRAM.replace("estimated_cycles", "other"))
    records = bytes(before) + b"\n" + _varint(len(source)) + source + wrapped + b"the end"
    room = _BLOCK - _HEADER
    headers = [bytes.fromhex("83af70d10d884a3f").ljust(_HEADER, b"\0")]
    headers += [b"\xff" * _HEADER] * (len(records) // room)
    parts = (header + records[n * room : (n + 1) * room] for n, header in enumerate(headers))
    return b"pjrt" + b"".join(parts)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2 * _BLOCK))
def test_a_module_is_found_wherever_blocks_begin(before):
    module = text_to_proto(PROGRAM)
    assert optimized_module(_executable(module, before)) == module


def test_where_there_is_none_there_is_none():
    assert optimized_module(b"") is None
    assert optimized_module(b"\n\x08jit_step\x12" * 3) is None
    assert optimized_module(_executable(text_to_proto(PROGRAM), 0)[:-400]) is None


def _shared(module: bytes, index: int) -> bytes:
    message = module_message(module)
    message.shared_configs.extend([b"{}", _CONFIG.encode()])
    for computation in message.computations:
        for instruction in computation.instructions:
            if instruction.backend_config:
                instruction.ClearField("backend_config")
                instruction.shared_config.index = index
    return message.SerializeToString()


def test_configurations_that_a_module_keeps_once_are_those_of_its_instructions():
    module = text_to_proto(PROGRAM)
    cycles = read_cycles(module)
    assert cycles
    assert read_cycles(_shared(module, 1)) == cycles
    assert read_cycles(_shared(module, 0)) == {}
    for index in (2, -1):
        with pytest.raises(HloError, match=f"configuration {index} of 2"):
            read_cycles(_shared(module, index))


def _operands_at_update(module: bytes) -> bytes:
    """The same program as SparseCores have it: started with nothing, the operands come with the
    update.
    """
    message = schema.MODULE.parse(module)
    (entry,) = (c for c in message.computations if c.id == message.computations[-1].id)
    by_opcode = {i.opcode: i for i in entry.instructions}
    start, update = by_opcode[b"async-start"], by_opcode[b"async-update"]
    update.operands.extend(list(start.operands))
    start.ClearField("operands")
    return message.SerializeToString()


def test_an_asynchronous_call_may_get_its_operands_later():
    module = text_to_proto(PROGRAM)
    usual, later = (flatten(decode_module(m)) for m in (module, _operands_at_update(module)))
    assert [(op.opcode, op.inputs, op.outputs) for op in later.ops] == [
        (op.opcode, op.inputs, op.outputs) for op in usual.ops
    ]
    assert later.outputs == usual.outputs
    assert "custom-call" in {op.opcode for op in later.ops}
