"""Prices in the user's cache: JSON both ways, files that are none, and whose they are."""

import json

from hypothesis import given, settings, strategies as st
import pytest

from automap.cost.profile import KernelPrices
from automap.cost.profile.prices import CompiledConvolution, CompiledDot
from automap.cost.profile.signatures import ConvolutionSignature, DotSignature, Spatial
from automap.errors import CacheWarning
from automap.refine.attribution import load_prices, prices_path, save_prices
from automap.topology import get_topology


size = st.integers(1, 2**40)
seconds = st.floats(1e-9, 1e3)
dots = st.builds(
    DotSignature, dtype=st.sampled_from(["f32", "bf16"]), batch=size, m=size, n=size, k=size
)
spatial = st.builds(
    Spatial,
    read=size,
    made=size,
    taps=size,
    stride=size,
    padding_low=st.integers(-3, 3),
    window_dilation=size,
    base_dilation=size,
)
convolutions = st.builds(
    ConvolutionSignature,
    dtype=st.just("f32"),
    batch=size,
    in_features=size,
    out_features=size,
    feature_groups=st.just(1),
    batch_groups=st.just(1),
    spatial=st.tuples(spatial, spatial),
)
prices = st.builds(
    KernelPrices,
    dots=st.lists(
        st.builds(CompiledDot, signature=dots, seconds=seconds, predicted_seconds=seconds),
        unique_by=lambda row: row.signature,
        max_size=3,
    ).map(tuple),
    convolutions=st.lists(
        st.builds(
            CompiledConvolution, signature=convolutions, seconds=seconds, predicted_seconds=seconds
        ),
        unique_by=lambda row: row.signature,
        max_size=3,
    ).map(tuple),
)
DOT = CompiledDot(
    signature=DotSignature(dtype="f32", batch=1, m=2, n=3, k=4), seconds=2.0, predicted_seconds=1.0
)


@settings(max_examples=40, deadline=None)
@given(prices)
def test_every_price_survives(tmp_path_factory, given_prices):
    path = tmp_path_factory.mktemp("prices") / "folder" / "prices.json"
    save_prices(path, given_prices)
    assert load_prices(path) == given_prices


def test_the_ratio_of_a_workload_is_not_kept(tmp_path):
    path = tmp_path / "prices.json"
    save_prices(path, KernelPrices(dots=(DOT,), other_ratio=3.0))
    assert load_prices(path) == KernelPrices(dots=(DOT,))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: "{",
        lambda data: [],
        lambda data: data | {"format": "another"},
        lambda data: data | {"version": 2},
        lambda data: data | {"extra": 1},
        lambda data: data | {"dots": [data["dots"][0]] * 2},
        lambda data: data | {"dots": [data["dots"][0] | {"seconds": 0.0}]},
        lambda data: data | {"dots": [data["dots"][0] | {"seconds": float("nan")}]},
        lambda data: data | {"dots": [data["dots"][0] | {"signature": {"dtype": "f32"}}]},
        lambda data: data | {"other_ratio": -1.0},
    ],
)
def test_a_file_that_is_none_is_no_price_and_is_written_anew(tmp_path, change):
    path = tmp_path / "prices.json"
    save_prices(path, KernelPrices(dots=(DOT,)))
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.warns(CacheWarning, match="not used, and written anew"):
        assert load_prices(path) == KernelPrices()
    save_prices(path, KernelPrices(dots=(DOT,)))
    assert load_prices(path) == KernelPrices(dots=(DOT,))


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(CacheWarning, match="--no-cache"):
        save_prices(tmp_path / "file" / "prices.json", KernelPrices(dots=(DOT,)))


def test_devices_and_compilers_have_files_of_their_own(tmp_path, monkeypatch):
    names = {prices_path(tmp_path, get_topology(name)) for name in ("8xh100", "8xa100", "v5e:2x4")}
    assert len(names) == 3
    # The size of the machine does not matter to a kernel.
    assert prices_path(tmp_path, get_topology("2x8xh100")) in names
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    assert prices_path(tmp_path, get_topology("8xh100")) not in names
