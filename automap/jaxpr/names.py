"""Names of ops for people: what JAX wrote, without the tags that find an op's equation again."""

import re


# A named scope around one equation (`automap.jaxpr.sites`): "am12.b0.3~".
TAG = re.compile(r"(?<![0-9A-Za-z_.~])am([0-9][0-9a-z.]*)~")


def readable(op_name: str) -> str:
    """The name of an op without its tags."""
    return re.sub(rf"{TAG.pattern}/?", "", op_name)
