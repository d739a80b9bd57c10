"""Compilers, a folder for each: what one does with a program, and the numbers fitted to it.

Each has a folder (`xla_cpu`, `xla_gpu`, `xla_tpu`) and is a `Backend`; `registry` finds the one of
a platform, `fitted` reads its data files, `protocols` says how its library sends a message.

`automap.backends.arrays`    how arrays lie in memory, and what operations need besides
`automap.backends.believed`  what a compiler's scheduler takes collectives to last
`automap.backends.effects`   the protocol of what is added by how arrays lie in memory
`automap.backends.transposes`  how much longer a copy to another order takes
"""

from automap.backends.base import Backend, CompiledCollectives, LoopMessages, ScatteredSums
from automap.backends.fitted import (
    AdditionNumbers,
    AlignmentNumbers,
    ColumnNumbers,
    ConvolutionNumbers,
    CoreNumbers,
    FactorizationNumbers,
    TileNumbers,
)
from automap.backends.protocols import Algorithm, Protocol, SentSpan
from automap.backends.registry import BACKENDS, backend_for, version_warnings


__all__ = [
    "BACKENDS",
    "AdditionNumbers",
    "Algorithm",
    "AlignmentNumbers",
    "Backend",
    "ColumnNumbers",
    "ConvolutionNumbers",
    "CoreNumbers",
    "CompiledCollectives",
    "FactorizationNumbers",
    "Protocol",
    "LoopMessages",
    "ScatteredSums",
    "SentSpan",
    "TileNumbers",
    "backend_for",
    "version_warnings",
]
