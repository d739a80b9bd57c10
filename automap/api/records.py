"""Records are what the rooms below hand over; what users hold is a class of the same fields that
explains itself.
"""

from dataclasses import fields
from typing import Any


def field_values(record: Any) -> dict[str, Any]:
    """The fields of a dataclass's object by name, as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record)}
