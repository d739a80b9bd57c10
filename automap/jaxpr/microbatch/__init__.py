"""Steps in microbatches: an unmodified step, traced at two batch sizes, as a loop over parts of its
batch.

`automap.runtime.microbatched` runs such a program on one device, `automap.runtime.pipeline` on the
devices of stages.
"""

from automap.jaxpr.microbatch.program import MicrobatchProgram
from automap.jaxpr.microbatch.separate import separate


__all__ = ["MicrobatchProgram", "separate"]
