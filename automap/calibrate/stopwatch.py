"""Times loops on real devices: the `Stopwatch` of a calibration."""

from collections.abc import Callable
import time

import jax
import numpy as np

from automap.calibrate.loops import Program, compiled_loop
from automap.calibrate.machine import Machine
from automap.calibrate.programs import kernel_program
from automap.calibrate.session import Item, Unmeasurable
from automap.calibrate.timing import Clock, Effort, Timing, seconds_per_trip
from automap.calibrate.transfers import transfer_program
from automap.cost.profile import Transfer


_EMPTY_SAMPLES = 7
# A loop may hold its carry twice. A processor has no allocator that refuses: what is too large
# kills the program.
_LOOP_COPIES = 2


class DeviceStopwatch:
    """Measures on the devices of a machine, all of which run the same loop at once."""

    def __init__(self, machine: Machine, effort: Effort, clock: Clock = time.perf_counter) -> None:
        """Measures the time of an empty program first."""
        self.longest_seconds = effort.longest_seconds
        self._machine, self._effort, self._clock = machine, effort, clock
        self._overhead_seconds = self._empty_seconds()

    def time(self, item: Item, expected_seconds: float) -> Timing:
        """Seconds of one trip of the item's loop. Raises `Unmeasurable` for what XLA refuses."""
        is_transfer = isinstance(item, Transfer)
        sizes = item.sizes if is_transfer else (len(self._machine.devices),)
        program = transfer_program(item) if is_transfer else kernel_program(item)
        needed = _LOOP_COPIES * program.n_bytes
        if needed > self._machine.memory_bytes:
            raise Unmeasurable(f"needs {needed / 2**30:.3g} GiB on each device")
        try:
            return seconds_per_trip(
                compiled_loop(program, self._machine.mesh(sizes)),
                expected_seconds=expected_seconds,
                overhead_seconds=self._overhead_seconds,
                effort=self._effort,
                clock=self._clock,
            )
        except (jax.errors.JaxRuntimeError, ValueError, TypeError, NotImplementedError) as error:
            raise Unmeasurable(str(error).partition("\n")[0]) from error

    def _empty_seconds(self) -> float:
        leaf = jax.ShapeDtypeStruct((1,), "float32")
        mesh = self._machine.mesh((len(self._machine.devices),))
        run = compiled_loop(Program((leaf,), lambda carry: carry), mesh)(0)
        run()
        return float(np.median([self._once(run) for _ in range(_EMPTY_SAMPLES)]))

    def _once(self, run: Callable[[], None]) -> float:
        start = self._clock()
        run()
        return self._clock() - start
