"""The sharding rules that a user gives for custom calls and jitted functions."""

from collections.abc import Iterable, Mapping

from automap.errors import InputError
from hlo_tools.errors import HloError
from hlo_tools.rules import Notation, parse_notation


def user_rules(rules: Iterable[tuple[str, str]]) -> Mapping[str, Notation]:
    """(name, text) pairs as rules by name. Raises `InputError` for text that is none."""
    try:
        # Of two rules of one name the last counts, as of two options of a command.
        return {name: parse_notation(text) for name, text in rules}
    except HloError as error:
        raise InputError(str(error)) from error
