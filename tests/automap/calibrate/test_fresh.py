"""What new memory costs: measured on this processor, and nothing where a runtime keeps a pool."""

from dataclasses import replace

from automap.calibrate import fresh
from automap.calibrate.fresh import fresh_seconds_per_byte
from automap.calibrate.machine import find_machine


def test_a_processor_pays_for_the_first_touch(monkeypatch):
    monkeypatch.setattr(fresh, "_MOST_BYTES", 2**20)
    machine = find_machine(2)
    assert 0 <= fresh_seconds_per_byte(machine) < 1e-6
    assert fresh_seconds_per_byte(replace(machine, platform="cuda")) == 0.0


def test_it_is_the_difference_by_the_byte(monkeypatch):
    seconds = iter([3.0, 1.0])
    monkeypatch.setattr(fresh, "_MOST_BYTES", 1000)
    monkeypatch.setattr(fresh, "_median_seconds", lambda run: next(seconds))
    assert fresh_seconds_per_byte(find_machine(2)) == 2.0 / 1000
