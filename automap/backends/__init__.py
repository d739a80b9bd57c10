"""Compilers, a folder for each: what one does with a program, and the numbers fitted to it.

base        the interface
protocols   how a library sends a message
registry    the backends by platform
xla_cpu, xla_gpu, xla_tpu
"""

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.protocols import Algorithm, Protocol, SentSpan
from automap.backends.registry import BACKENDS, backend_for


__all__ = [
    "BACKENDS",
    "Algorithm",
    "Backend",
    "CompiledCollectives",
    "Protocol",
    "SentSpan",
    "backend_for",
]
