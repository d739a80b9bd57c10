"""Compilers, a folder for each: what one does with a program, and the numbers fitted to it.

base        the interface
protocols   how a library sends a message
fitted      numbers that were fitted to a version, from the data files
registry    the backends by platform
xla_cpu, xla_gpu, xla_tpu
"""

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.fitted import TileNumbers
from automap.backends.protocols import Algorithm, Protocol, SentSpan
from automap.backends.registry import BACKENDS, backend_for, version_warnings


__all__ = [
    "BACKENDS",
    "Algorithm",
    "Backend",
    "CompiledCollectives",
    "Protocol",
    "SentSpan",
    "TileNumbers",
    "backend_for",
    "version_warnings",
]
