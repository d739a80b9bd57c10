"""The loops that are timed: they compute what their signature says, once a trip, on all devices."""

import jax
import numpy as np
import pytest

from automap.calibrate.calibration import DeviceStopwatch
from automap.calibrate.loops import compiled_loop, made_dependent
from automap.calibrate.machine import find_machine
from automap.calibrate.programs import jax_dtype, kernel_loop
from automap.calibrate.session import Unmeasurable
from automap.calibrate.timing import Effort
from automap.calibrate.transfers import transfer_loop
from automap.cost.collectives import CollectiveKind
from automap.cost.profile import Transfer
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    Spatial,
    StreamSignature,
)
from automap.errors import CalibrationError
from automap.topology.dtypes import DTYPE_FALLBACK
from hlo_tools.graph import DTYPE_BITS


DOT = DotSignature(dtype="f32", batch=2, m=3, n=5, k=4)
CONVOLUTION = ConvolutionSignature(
    dtype="f32",
    batch=2,
    in_features=4,
    out_features=6,
    feature_groups=2,
    batch_groups=1,
    spatial=(
        Spatial(
            read=8, made=4, taps=3, stride=2, padding_low=0, window_dilation=1, base_dilation=1
        ),
        Spatial(
            read=6, made=6, taps=3, stride=1, padding_low=1, window_dilation=1, base_dilation=1
        ),
    ),
)
FAMILIES = ("elementwise", "reduce", "gather", "scatter", "window", "select-and-scatter", "sort")
EFFORT = Effort(least_seconds=1e-4, samples=3, longest_seconds=1.0)


def filled(program):
    return tuple(
        jax.random.uniform(jax.random.key(i), leaf.shape).astype(leaf.dtype)
        for i, leaf in enumerate(program.carry)
    )


def test_a_dot_s_trip_multiplies():
    program = kernel_loop(DOT)
    left, right, result = filled(program)
    _, _, made = program.trip((left, right, result))
    expected = np.asarray(made_dependent(left, result)) @ np.asarray(right)
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    assert made.shape == (2, 3, 5)


@pytest.mark.parametrize(
    "signature",
    [
        DOT,
        CONVOLUTION,
        *(StreamSignature(family=f, elements="wide float", n_bytes=2**16) for f in FAMILIES),
        *(StreamSignature(family=f, elements="integer", n_bytes=2**14) for f in FAMILIES[:4]),
        StreamSignature(family="reduce", elements="narrow float", n_bytes=0),
    ],
)
def test_a_trip_keeps_the_carry_and_depends_on_the_trip_before(signature):
    program = kernel_loop(signature)
    made = jax.eval_shape(program.trip, program.carry)
    assert [(m.shape, m.dtype) for m in made] == [(c.shape, c.dtype) for c in program.carry]
    text = jax.jit(lambda c: jax.lax.fori_loop(0, 3, lambda _, s: program.trip(s), c)).lower(
        program.carry
    )
    body = text.compile().as_text() or ""
    assert "while" in body or "known_trip_count" not in body


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_move_the_bytes_that_they_say(family):
    n_bytes = 9 * 2**16
    program = kernel_loop(StreamSignature(family=family, elements="wide float", n_bytes=n_bytes))
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in program.carry]
    moved = {
        "elementwise": 3 * sizes[0],
        "gather": 2 * sizes[-1],
        "scatter": 3 * sizes[-1],
    }.get(family, sum(sizes))
    assert moved == pytest.approx(n_bytes, rel=0.15)


@pytest.mark.parametrize("kind", list(CollectiveKind))
@pytest.mark.parametrize(("sizes", "axis"), [((8,), 0), ((2, 4), 0), ((2, 4), 1)])
def test_collectives_run_and_hold_the_bytes_that_they_say(kind, sizes, axis):
    transfer = Transfer(kind=kind, sizes=sizes, axis=axis, n_bytes=2**12)
    program = transfer_loop(transfer)
    held = [leaf.size * leaf.dtype.itemsize for leaf in program.carry]
    assert max(held) == transfer.n_bytes
    timing = DeviceStopwatch(find_machine(8), EFFORT).time(transfer, 1e-4)
    assert timing.seconds >= 0


def test_every_device_runs_every_trip():
    """x -> x / 2 + y, n times, from x = y = c: x = c (2 - 2^-n)."""
    machine = find_machine(8)
    program = kernel_loop(StreamSignature(family="elementwise", elements="wide float", n_bytes=96))
    seen = []

    def trip(carry):
        x, y = program.trip(carry)
        return x, y

    run = compiled_loop(type(program)(program.carry, trip), machine.mesh((8,)))(3)
    run()
    state = [
        cell.cell_contents for cell in run.__closure__ or () if isinstance(cell.cell_contents, list)
    ]
    for x, y in (tuple(map(np.asarray, arrays)) for (arrays,) in state):
        seen.append(x.shape)
        np.testing.assert_allclose(x, y * (2 - 2.0**-3), rtol=1e-6)
    assert seen == [(8, 8)]


def test_what_a_device_cannot_hold_is_unmeasurable():
    huge = DotSignature(dtype="f32", batch=2**30, m=2**20, n=2**20, k=2**20)
    with pytest.raises(Unmeasurable):
        DeviceStopwatch(find_machine(8), EFFORT).time(huge, 1.0)


def test_more_devices_than_there_are_is_refused():
    for count, allowed in ((9, "1 to 8, the devices that JAX shows"), (0, "1 to "), (-1, "1 to ")):
        with pytest.raises(CalibrationError, match=rf"--device-count {count}: allowed: {allowed}"):
            find_machine(count)


def test_names_of_types_are_jax_s():
    for dtype in DTYPE_FALLBACK:
        if dtype in DTYPE_BITS:
            assert jax.numpy.dtype(jax_dtype(dtype)).itemsize * 8 >= DTYPE_BITS[dtype]
