"""Replica groups in all their forms, and collectives of compiled modules by hand."""

from itertools import product
import math

from hypothesis import given, strategies as st
import pytest

from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.attributes import read_groups
from hlo_tools.read.proto import decode_module
from hlo_tools.read.schema import INSTRUCTION


_HEAD = """HloModule m, num_partitions=8
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""


def _collectives(text):
    return compiled_collectives(decode_module(text_to_proto(_HEAD + text)))


def _all_reduce(groups):
    (collective,) = _collectives(
        f"""ENTRY %e (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} all-reduce(%p), channel_id=1, replica_groups={groups},
    use_global_device_ids=true, to_apply=%add
}}"""
    )
    return collective


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (
            "mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}",
            ((0, 1, 2, 3), (4, 5, 6, 7)),
        ),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ],
)
def test_every_form_of_replica_groups(text, groups):
    assert sorted(map(tuple, map(sorted, _all_reduce(text).groups))) == sorted(groups)


def test_no_groups_are_all_devices():
    assert _all_reduce("{}").groups is None


def _groups(**fields):
    return read_groups(INSTRUCTION.message_class(**fields))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_mesh_axes_join_what_differs_only_there(sizes, data):
    chosen = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    axes = {
        "mesh": {"axes": [{"size": s} for s in sizes]},
        "axes": [{"axis": a} for a in sorted(chosen)],
    }
    expected = {}
    for device, place in enumerate(product(*map(range, sizes))):
        rest = tuple(p for a, p in enumerate(place) if a not in chosen)
        expected.setdefault(rest, []).append(device)
    assert sorted(map(sorted, _groups(mesh_axes_groups=axes))) == sorted(expected.values())
    permutation = [*sorted(set(range(len(sizes))) - chosen), *sorted(chosen)]
    size = math.prod(sizes[a] for a in chosen)
    iota = {"groups": math.prod(sizes) // size, "size": size}
    iota |= {"reshape": sizes, "transpose": permutation}
    assert _groups(iota_groups=iota) == _groups(mesh_axes_groups=axes)


@pytest.mark.parametrize(
    "raw",
    [
        {"iota_groups": {"groups": 3, "size": 2, "reshape": [8]}},
        {"iota_groups": {"groups": 1 << 40, "size": 1 << 40, "reshape": [1 << 40, 1 << 40]}},
        {"iota_groups": {"groups": 4, "size": 2, "reshape": [2, 4], "transpose": [0, 0]}},
        {"iota_groups": {"groups": 2, "size": 1, "reshape": [1 << 62] * 100_000}},
        {"mesh_axes_groups": {"mesh": {"axes": [{"size": 2}]}, "axes": [{"axis": 1}]}},
        {"mesh_axes_groups": {"mesh": {"axes": [{"size": 2}]}, "axes": [{"axis": -2}]}},
        {"mesh_axes_groups": {"mesh": {"axes": [{"size": 8}], "devices": [0]}, "axes": [{}]}},
        {
            "mesh_axes_groups": {
                "mesh": {"axes": [{"size": 8}]},
                "axes": [{"part": {"pre_size": 3, "size": 2}}],
            }
        },
        {
            "mesh_axes_groups": {
                "mesh": {"axes": [{"size": 8}]},
                "axes": [{"part": {"pre_size": 0, "size": 0}}],
            }
        },
    ],
)
def test_groups_that_contradict_themselves_are_refused(raw):
    with pytest.raises(HloError, match="replica groups"):
        _groups(**raw)


def test_tensors_of_every_kind():
    collectives = _collectives(
        """ENTRY %e (p: f32[8], q: bf16[4,2]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %q = bf16[4,2]{1,0} parameter(1)
  %t = (f32[8]{0}, bf16[4,2]{1,0}) all-reduce(%p, %q), replica_groups={}, to_apply=%add
  %g = (f32[8]{0}, f32[64]{0}) all-gather-start(%p), replica_groups={}, dimensions={0}
  %gd = f32[64]{0} all-gather-done(%g)
  %s = f32[1]{0} reduce-scatter(%p), replica_groups={}, dimensions={0}, to_apply=%add
  %x = f32[8]{0} all-to-all(%p), replica_groups={}, dimensions={0}
  %y = (bf16[4,2]{1,0}, bf16[4,2]{1,0}) all-to-all(%q, %q), replica_groups={{0,1},{2,3},{4,5},{6,7}}
  ROOT %m = f32[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}
}"""
    )
    assert [(c.kind, c.n_bytes) for c in collectives] == [
        ("all-reduce", 32),
        ("all-reduce", 16),
        ("all-gather", 256),
        ("reduce-scatter", 32),
        ("all-to-all", 32),
        ("all-to-all", 32),
        ("collective-permute", 32),
    ]
    assert collectives[-1].groups == ((0, 1), (1, 0))


def test_a_loop_counts_its_collectives_once_per_trip():
    collectives = _collectives(
        """%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8] get-tuple-element(%s), index=1
  %r = f32[8] all-reduce(%x), replica_groups={}, to_apply=%add
  ROOT %t = (s32[], f32[8]) tuple(%i, %r)
}
%condition (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]) parameter(0)
  ROOT %never = pred[] constant(true)
}
ENTRY %e (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  ROOT %w = (s32[], f32[8]) while(%p), condition=%condition, body=%body,
    backend_config={"known_trip_count":{"n":"7"}}
}"""
    )
    assert [(c.kind, c.count) for c in collectives] == [("all-reduce", 7)]


def test_a_collective_written_in_steps_counts_once():
    steps = "\n".join(
        f"  %g{i} = f32[64]{{0}} all-gather(%p), channel_id=3, replica_groups={{}}, "
        "dimensions={0}"
        for i in range(3)
    )
    collectives = _collectives(
        f"""ENTRY %e (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
{steps}
  ROOT %r = f32[8]{{0}} all-reduce(%p), channel_id=3, replica_groups={{}}, to_apply=%add
}}"""
    )
    assert [(c.kind, c.n_bytes) for c in collectives] == [("all-gather", 256), ("all-reduce", 32)]


def test_steps_that_are_fused_into_other_ops_count_once():
    names = "q", "attention/q", "mlp/dot/q"
    steps = "\n".join(
        f"  %g{i} = f32[64]{{0}} all-gather(%p), channel_id=3, replica_groups={{}}, "
        "dimensions={0}"
        f', metadata={{op_name="{name}"}}'
        for i, name in enumerate(names)
    )
    collectives = _collectives(
        f"""ENTRY %e (p: f32[8]) -> f32[64] {{
  %p = f32[8]{{0}} parameter(0)
{steps}
  ROOT %s = f32[64]{{0}} add(%g0, %g2)
}}"""
    )
    assert [(c.kind, c.n_bytes, c.op_name) for c in collectives] == [("all-gather", 256, "q")]


def test_steps_in_a_loop_of_which_one_is_fused_count_once():
    """As libtpu writes the gather of a kernel in a scan: only the step in the fusion has the
    fusion's name before its own.
    """
    gather = (
        "all-gather(%x), channel_id=3, replica_groups={}, dimensions={0}"
        ', metadata={op_name="squeeze"}'
    )
    collectives = _collectives(
        f"""%fused (x: f32[8]) -> f32[64] {{
  %x = f32[8] parameter(0)
  ROOT %g = f32[64] {gather}
}}
%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8] get-tuple-element(%s), index=1
  %first = f32[64] {gather}
  %second = f32[64] fusion(%x), kind=kCustom, calls=%fused, metadata={{op_name="mlp/dot"}}
  ROOT %t = (s32[], f32[8]) tuple(%i, %x)
}}
%condition (s: (s32[], f32[8])) -> pred[] {{
  %s = (s32[], f32[8]) parameter(0)
  ROOT %never = pred[] constant(true)
}}
ENTRY %e (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], f32[8]) parameter(0)
  ROOT %w = (s32[], f32[8]) while(%p), condition=%condition, body=%body,
    backend_config={{"known_trip_count":{{"n":"7"}}}}, metadata={{op_name="step/while"}}
}}"""
    )
    assert [(c.op_name, c.count) for c in collectives] == [("step/while/squeeze", 7)]


def test_an_all_reduce_fused_with_its_slice_is_a_reduce_scatter():
    collectives = _collectives(
        """%all-reduce-scatter (p: f32[64]) -> f32[8] {
  %p = f32[64]{0} parameter(0)
  %r = f32[64]{0} all-reduce(%p), channel_id=3, replica_groups={}, to_apply=%add
  %start = s32[] constant(8)
  ROOT %d = f32[8]{0} dynamic-slice(%r, %start), dynamic_slice_sizes={8}
}
ENTRY %e (p: f32[64]) -> f32[8] {
  %p = f32[64]{0} parameter(0)
  ROOT %f = f32[8]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter
}"""
    )
    assert [(c.kind, c.n_bytes) for c in collectives] == [("reduce-scatter", 256)]


def test_reduce_scatters_of_one_channel_are_as_many_as_there_are():
    """As libtpu 0.0.51 writes all of a program's, merged ones too, which have no dimensions."""
    scatter = """%{name} (p: f32[64], q: f32[64]) -> (f32[8], f32[8]) {{
  %p = f32[64]{{0}} parameter(0)
  %q = f32[64]{{0}} parameter(1)
  %r = (f32[64]{{0}}, f32[64]{{0}}) all-reduce(%p, %q), channel_id=1, replica_groups={{}},
    to_apply=%add
  %start = s32[] constant(8)
  %a = f32[64]{{0}} get-tuple-element(%r), index=0
  %b = f32[64]{{0}} get-tuple-element(%r), index=1
  %c = f32[8]{{0}} dynamic-slice(%a, %start), dynamic_slice_sizes={{8}}
  %d = f32[8]{{0}} dynamic-slice(%b, %start), dynamic_slice_sizes={{8}}
  ROOT %t = (f32[8]{{0}}, f32[8]{{0}}) tuple(%c, %d)
}}
"""
    text = "".join(scatter.format(name=name) for name in ("one", "other"))
    collectives = _collectives(
        f"""{text}ENTRY %e (p: f32[64], q: f32[64]) -> (f32[8], f32[8]) {{
  %p = f32[64]{{0}} parameter(0)
  %q = f32[64]{{0}} parameter(1)
  %f = (f32[8]{{0}}, f32[8]{{0}}) fusion(%p, %q), kind=kCustom, calls=%one
  ROOT %g = (f32[8]{{0}}, f32[8]{{0}}) fusion(%p, %q), kind=kCustom, calls=%other
}}"""
    )
    assert [(c.kind, c.n_bytes) for c in collectives] == [("reduce-scatter", 256)] * 4
    assert len({c.message for c in collectives}) == 2


def test_merged_reduce_scatters_are_slices_of_a_merged_all_reduce():
    """As libtpu 0.0.51 writes two of one size; the second time one tensor is not sliced."""
    text = """%all-reduce-scatter (p: f32[64], q: f32[32]) -> (f32[8], f32[4]) {
  %p = f32[64]{0} parameter(0)
  %q = f32[32]{0} parameter(1)
  %r = (f32[64]{0}, f32[32]{0}) all-reduce(%p, %q), channel_id=3, replica_groups={}, to_apply=%add
  %start = s32[] constant(8)
  %a = f32[64]{0} get-tuple-element(%r), index=0
  %b = f32[32]{0} get-tuple-element(%r), index=1
  %c = f32[8]{0} dynamic-slice(%a, %start), dynamic_slice_sizes={8}
  %d = f32[4]{0} dynamic-slice(%b, %start), dynamic_slice_sizes={4}
  ROOT %t = (f32[8]{0}, f32[4]{0}) tuple(%c, %d)
}
ENTRY %e (p: f32[64], q: f32[32]) -> (f32[8], f32[4]) {
  %p = f32[64]{0} parameter(0)
  %q = f32[32]{0} parameter(1)
  ROOT %f = (f32[8]{0}, f32[4]{0}) fusion(%p, %q), kind=kCustom, calls=%all-reduce-scatter
}"""
    collectives = _collectives(text)
    assert [(c.kind, c.n_bytes, c.message) for c in collectives] == [
        ("reduce-scatter", 256, 0),
        ("reduce-scatter", 128, 0),
    ]
    text = text.replace("tuple(%c, %d)", "tuple(%c, %b)").replace(
        "f32[8], f32[4])", "f32[8], f32[32])"
    )
    text = text.replace("(f32[8]{0}, f32[4]{0})", "(f32[8]{0}, f32[32]{0})")
    assert [c.kind for c in _collectives(text)] == ["all-reduce", "all-reduce"]
