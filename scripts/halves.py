"""Two halves of all steps by a hash that never changes: one may be fitted on, the other judges.

What a rule, a threshold or an efficiency was set on is of the first half; errors that the docs
quote are those of the second.
"""

import hashlib


def is_held_out(target: str) -> bool:
    """Whether a step, by the `module:function` that makes it, is of the half that judges."""
    return hashlib.sha256(target.encode()).digest()[0] % 2 == 1
