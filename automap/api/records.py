"""What the rooms below hand over, and what users hold, are two classes with the same fields.

    record   `PlanRecord`, `SimulationRecord`, ...: pure data, which any room may make and read
    held     `Plan`, `Simulation`, ...: the record as a class of this room, with methods that explain
             or run it, which need rooms that lie above the record's

A held class is `class Plan(FromRecord, PlanRecord)` with empty `__slots__`: it adds no field. One
that is made here only, as `Verification`, needs no `FromRecord`.
"""

from dataclasses import fields
from typing import Any, Self


class FromRecord:
    """The first base of what users hold; the second is the class of its record."""

    __slots__ = ()

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """What users hold of a record: an object with the same values, or the record itself if it
        is held already.
        """
        if isinstance(record, cls):
            return record
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return cls(**values)
