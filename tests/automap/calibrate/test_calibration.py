"""What new memory costs: measured on this processor, and nothing where a runtime keeps a pool."""

from dataclasses import replace

from automap.calibrate.calibration import fresh_seconds_per_byte
from automap.calibrate.machine import find_machine


def test_a_processor_pays_for_the_first_touch():
    machine = find_machine(8)
    assert 0 <= fresh_seconds_per_byte(machine, most_bytes=2**20) < 1e-6
    assert fresh_seconds_per_byte(replace(machine, platform="cuda")) == 0.0


def test_it_is_the_difference_by_the_byte():
    # Seven runs in new memory take three seconds each, seven in their operands' one.
    durations = [3.0] * 7 + [1.0] * 7
    times = iter([time for duration in durations for time in (0.0, duration)])
    per_byte = fresh_seconds_per_byte(find_machine(8), most_bytes=1000, clock=lambda: next(times))
    assert per_byte == 2.0 / 1000
