"""What `automap advise` is asked: every text is read as it says, or refused in one sentence."""

from dataclasses import replace

from hypothesis import given, settings, strategies as st
import pytest

from automap.advise.request import (
    Wanted,
    parse_fit,
    read_batches,
    read_machines,
    read_prices,
)
from automap.errors import InputError, TopologyError


def names(fit="", topology=()):
    return {machine.name for machine in read_machines(topology, fit)}


def test_conditions_are_all_met():
    machines = read_machines((), "gpus<=16, h100|a100|a100-40gb, memory>=80")
    assert {machine.kind for machine in machines} == {"a100", "h100"}
    assert max(machine.topology.device_count for machine in machines) == 16
    # The fewest devices first.
    counts = [m.topology.device_count for m in machines]
    assert counts == sorted(counts)


def test_chips_are_of_tpu_slices_and_gpus_of_gpus():
    assert all(":" in name for name in names("chips<=4"))
    assert not any(":" in name for name in names("gpus<=4"))
    # Two devices a chip.
    assert "tpu7x:1x2x2" in names("chips=4, tpu7x")
    assert "tpu7x:1x2x2" in names("devices=8, tpu7x")


def test_a_machine_that_is_named_is_looked_at_whatever_its_size():
    assert names("128x8xh100") == {"128x8xh100"}
    assert names("devices<=8, 8xh100|2xv100") == {"8xh100", "2xv100"}


def test_named_machines_are_all_of_them():
    assert names(topology=("8xh100", "v5e:4x4")) == {"8xh100", "v5e:4x4"}
    assert names("tpu", topology=("8xh100", "v5e:4x4")) == {"v5e:4x4"}


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ("gpu<=64", "got 'gpu<=64'; allowed: a quantity of devices, gpus, chips, memory"),
        ("gpus<=many", "allowed: conditions as gpus<=64"),
        ("gpus<=1e999", "allowed: a finite number"),
        ("gpus<=64,", "allowed: conditions as gpus<=64"),
        ("h1000", "^--fit: got 'h1000'; allowed: "),
        ("8xh1000", "^--fit: got '8xh1000'; allowed GPUs: "),
        ("h100,a100", r"machines meets it; .* alternatives are written as h100\|a100; "),
        ("v5e:3x3", "allowed slices of v5e"),
        ("memory>1e6", "none of .* machines meets it"),
    ],
)
def test_what_cannot_be_is_refused(fit, message):
    with pytest.raises((InputError, TopologyError), match=message):
        read_machines((), fit)


WORDS = st.sampled_from(
    ["gpus", "devices", "chips", "memory", "<=", ">", "=", "|", ",", " ", "64", "1e3", "h100", "é"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS | st.text(max_size=3), max_size=8).map("".join))
def test_any_text_is_read_or_refused(text):
    try:
        conditions = parse_fit(text)
    except (InputError, TopologyError) as error:
        assert str(error)
    else:
        assert len(conditions) == (text.count(",") + 1 if text else 0)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["devices", "gpus", "chips", "memory"]),
    st.sampled_from(["<", "<=", "=", ">=", ">"]),
    st.integers(1, 300),
)
def test_a_comparison_holds_as_arithmetic_says(quantity, symbol, number):
    (condition,) = parse_fit(f"{quantity} {symbol} {number}")
    compare = {"<": "__lt__", "<=": "__le__", "=": "__eq__", ">=": "__ge__", ">": "__gt__"}
    for machine in read_machines(("8xh100", "v5e:4x4", "tpu7x:2x2x1", "1xv100"), ""):
        value = machine.quantity(quantity)
        holds = value is not None and getattr(float(value), compare[symbol])(float(number))
        assert condition.holds(machine) == holds


def test_batches_double_or_are_listed():
    assert read_batches("64..512") == (64, 128, 256, 512)
    assert read_batches("3..13") == (3, 6, 12)
    assert read_batches("96, 64") == (64, 96)
    assert read_batches("") == ()


@pytest.mark.parametrize("text", ["0", "-1", "64..", "..4", "64..32", "a", "1.5", "1..2..3", "٣"])
def test_other_batches_are_refused(text):
    with pytest.raises(InputError, match="--batch"):
        read_batches(text)


def test_prices_are_of_a_machine_before_its_device(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('currency = "EUR"\n[per_device_hour]\nh100 = 3\n"8xH100" = 2.5\n')
    prices = read_prices(path)
    eight, sixteen, other = (
        read_machines((name,), "")[0] for name in ("8xh100", "2x8xh100", "v5e:4x4")
    )
    assert prices.currency == "EUR"
    assert prices.per_hour(eight) == 8 * 2.5
    assert prices.per_hour(sixteen) == 16 * 3
    assert prices.per_hour(other) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100 = 3", "a table \\[per_device_hour\\]"),
        ("[per_device_hour]\n", "a table \\[per_device_hour\\]"),
        ("[per_device_hour]\nh100 = -1", "per_device_hour.h100: got -1; allowed: a number"),
        ("[per_device_hour]\nh100 = nan", "per_device_hour.h100: got nan"),
        ("[per_device_hour]\nh100 = true", "per_device_hour.h100: got True"),
        ('[per_device_hour]\nh100 = "3"', "h100: got the text '3'; .* without quotes"),
        ("[per_device_hour]\nh10 = 1", "h10: no machine is called so; .*h100,"),
        ('[per_device_hour]\nh100 = 1\n"8xh10" = 1', "8xh10: no machine is called so"),
        ('[per_device_hour]\n"prices.toml" = 1', "prices.toml: no machine is called so"),
        ("currency = 3\n[per_device_hour]\nh100 = 1", "currency: got '3'"),
        ("[per_device_hour", "expected a TOML file as docs/how-to/choose-a-machine.md shows"),
    ],
)
def test_other_prices_are_refused(tmp_path, text, message):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_prices(path)


def test_machines_of_a_file_have_prices_by_their_own_names(tmp_path):
    machine = read_machines(("8xh100",), "")[0]
    own = replace(machine, name="Our-Box", kind="Our GPU")
    path = tmp_path / "prices.toml"
    path.write_text('[per_device_hour]\n"Our GPU" = 2\n')
    assert read_prices(path, [own]).per_hour(own) == 8 * 2
    with pytest.raises(InputError, match="our gpu: no machine is called so"):
        read_prices(path)


def test_a_rate_is_a_number():
    assert replace(Wanted(), tokens_per_second=1e6).is_given
    with pytest.raises(InputError, match="--tokens-per-second nan"):
        Wanted(tokens_per_second=float("nan"))
