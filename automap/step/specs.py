"""Specs that a user's code imposes, and their text, which the target of a marked constraint has.

text      := [dim ("," dim)*]                      one per dimension
dim       := "null" | "*" | axis ("+" axis)*       "*": free, the plan decides (UNCONSTRAINED)
"""

# The axes of each dimension, major first; None for one that is left free.
ImposedSpec = tuple[tuple[str, ...] | None, ...]


def spec_text(spec: ImposedSpec) -> str:
    """A spec as text."""
    return ",".join("*" if axes is None else "+".join(axes) or "null" for axes in spec)


def read_spec(text: str) -> ImposedSpec:
    """The spec of a text that `spec_text` made."""
    return tuple(
        None if dim == "*" else () if dim == "null" else tuple(dim.split("+"))
        for dim in (text.split(",") if text else ())
    )
