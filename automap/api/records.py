"""What the packages below return, and what users get, are two classes with the same fields.

    record   `PlanRecord`, `SimulationRecord`, ...: pure data, which any package may make and read
    user's   `Plan`, `Simulation`, ...: the record as a class of this package, with methods that
             explain or run it, which need packages that lie above the record's

A user's class is `class Plan(FromRecord, PlanRecord)` with empty `__slots__`: it adds no field. One
that is made here only, as `Verification`, needs no `FromRecord`.
"""

from dataclasses import fields
from typing import Any, Self


class FromRecord:
    """The first base of a user's class; the second is the class of its record."""

    __slots__ = ()

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """The user's object for a record: one with the same values, or the record itself if it is
        one already.
        """
        if isinstance(record, cls):
            return record
        # Not `dataclasses.asdict`, which would turn the records inside into dictionaries.
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return cls(**values)
