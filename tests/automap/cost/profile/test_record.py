"""The profile file: what is written comes back, nothing else is read, and half a file is never
left.
"""

import copy
from dataclasses import replace
import json

from hypothesis import given, strategies as st
import pytest

from automap.cost.collectives import CollectiveKind
from automap.cost.profile import (
    ConvolutionTime,
    DotTime,
    KernelProfile,
    StreamTime,
    Transfer,
    TransferTime,
    default_path,
    device_name,
)
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    Spatial,
    StreamSignature,
)
from automap.errors import InputError, PlanError, ProfileError
from automap.plan.codec import encode
from automap.plan.file import layout, parse
from automap.topology import get_topology


size = st.integers(1, 10**6)
dtype = st.sampled_from(["f32", "bf16", "s8"])
seconds = st.floats(1e-9, 1e3)
dots = st.builds(DotSignature, dtype=dtype, batch=size, m=size, n=size, k=size)
spatial = st.builds(
    Spatial,
    read=size,
    made=size,
    taps=size,
    stride=size,
    padding_low=st.integers(-9, 9),
    window_dilation=size,
    base_dilation=size,
)
convolutions = st.builds(
    ConvolutionSignature,
    dtype=dtype,
    batch=size,
    in_features=size,
    out_features=size,
    feature_groups=st.just(1),
    batch_groups=st.just(1),
    spatial=st.lists(spatial, max_size=3).map(tuple),
)
streams = st.builds(
    StreamSignature,
    family=st.sampled_from(["elementwise", "reduce", "sort"]),
    elements=st.sampled_from(["wide float", "integer"]),
    n_bytes=st.integers(0, 2**50),
)
transfers = st.builds(
    Transfer,
    kind=st.sampled_from([str(kind) for kind in CollectiveKind]),
    sizes=st.sampled_from([(8,), (2, 4)]),
    axis=st.just(0),
    n_bytes=size,
)


def rows(row, signature):
    return st.dictionaries(signature, seconds, max_size=4).map(
        lambda times: tuple(row(signature=s, seconds=t) for s, t in times.items())
    )


profiles = st.builds(
    KernelProfile,
    device=st.just("h100"),
    device_kind=st.text(max_size=5),
    jax_version=st.just("1"),
    dots=rows(DotTime, dots),
    convolutions=rows(ConvolutionTime, convolutions),
    streams=rows(StreamTime, streams),
    transfers=rows(TransferTime, transfers),
)
EMPTY = KernelProfile(device="h100", device_kind="NVIDIA H100", jax_version="1")
DOT = DotSignature(dtype="f32", batch=1, m=2, n=3, k=4)
ONE = EMPTY.with_times([(DOT, 1e-3)])


def table(profile):
    return {"format": "automap-profile", "version": 1, **encode(profile)}


@given(profiles)
def test_what_is_written_is_read_back(profile):
    assert KernelProfile.parse(parse(layout(table(profile)))) == profile


@given(profiles, profiles)
def test_a_merge_has_both_and_the_newer_time_wins(old, new):
    merged = old.merged(replace(new, device_kind=old.device_kind)).times()
    assert merged == old.times() | new.times()


def test_a_file_is_written_and_read(tmp_path):
    path = tmp_path / "folder" / "profile.json"
    ONE.save(path)
    assert KernelProfile.load(path) == ONE
    assert [p.name for p in path.parent.iterdir()] == ["profile.json"]


def damaged(change):
    node = copy.deepcopy(json.loads(json.dumps(table(ONE))))
    change(node)
    return node


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: n.update(format="automap-plan"), "format: is not automap-profile"),
        (lambda n: n.update(version=2), "version: got 2; allowed: 1"),
        (lambda n: n.update(more=1), "more: unknown field; allowed: device, device_kind"),
        (lambda n: n.pop("dots"), "dots: missing"),
        (lambda n: n.update(dots={}), "dots: got {}; allowed: a list"),
        (
            lambda n: n["dots"][0].update(seconds=0),
            r"dots\[0\]\.seconds: got 0.0; allowed: a finite",
        ),
        (lambda n: n["dots"][0].update(seconds=float("nan")), r"dots\[0\]\.seconds: got nan"),
        (lambda n: n["dots"][0].update(seconds=-1), r"dots\[0\]\.seconds: got -1"),
        (lambda n: n["dots"][0].update(seconds="1"), r"dots\[0\]\.seconds: got '1'"),
        (
            lambda n: n["dots"][0]["signature"].update(m=0),
            r"dots\[0\]\.signature\.sizes: got \(1, 0",
        ),
        (
            lambda n: n["dots"][0]["signature"].update(dtype="f3"),
            r"dots\[0\]\.signature\.dtype: got 'f3'",
        ),
        (
            lambda n: n["dots"][0]["signature"].update(m=2**70),
            r"dots\[0\]\.signature\.sizes: got \(1, 118",
        ),
        (lambda n: n["dots"].append(n["dots"][0]), r"dots\[1\]\.signature: is there twice"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path, change, message):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(damaged(change)))
    with pytest.raises(ProfileError, match=rf"profile '.*profile\.json': {message}"):
        KernelProfile.load(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 10**5, b"1e999"])
def test_what_is_no_profile_is_refused(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"profile\.json': .*automap calibrate"):
        KernelProfile.load(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(["device", "dots", "streams", "transfers", "version"]), json_values)
def test_any_values_are_read_or_refused(field, value):
    try:
        KernelProfile.parse({**table(ONE), field: value})
    except PlanError as error:
        assert str(error)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(ProfileError, match="No such file"):
        KernelProfile.load(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="is no regular file"):
        ONE.save(tmp_path)


def test_profiles_of_two_devices_do_not_merge():
    with pytest.raises(ProfileError, match="allowed: one device, one JAX"):
        ONE.merged(replace(EMPTY, device="a100"))


def test_a_profile_is_for_its_device_only():
    ONE.check_suits(get_topology("2x8xh100"))
    replace(ONE, device="cpu-8").check_suits(get_topology("cpu:8"))
    for name in ("8xa100", "cpu:8"):
        with pytest.raises(InputError, match="run `automap calibrate` there"):
            ONE.check_suits(get_topology(name))
    with pytest.raises(InputError, match="'cpu-8'"):
        replace(ONE, device="cpu-8").check_suits(get_topology("cpu:4"))


@pytest.mark.parametrize(
    ("platform", "kind", "count", "name"),
    [
        ("cpu", "cpu", 8, "cpu-8"),
        ("cuda", "NVIDIA H100 80GB HBM3", 8, "h100"),
        ("cuda", "NVIDIA GeForce RTX 3090", 1, "nvidia-geforce-rtx-3090"),
        ("tpu", "TPU v5 lite", 4, "v5e"),
    ],
)
def test_names_of_devices(platform, kind, count, name):
    assert device_name(platform, kind, count) == name
    assert default_path(name, "0.10.2").name == f"profile-{name}-jax-0.10.2.json"
