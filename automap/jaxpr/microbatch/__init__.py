"""Steps in microbatches: an unmodified step, traced at two batch sizes, as a loop over parts of its
batch.

`automap.runtime.microbatched` runs such a program on one device, `automap.runtime.pipeline` on the
devices of stages.
"""

from automap.jaxpr.microbatch.dependence import Operator
from automap.jaxpr.microbatch.program import MicrobatchProgram, Pass, SampleDimension
from automap.jaxpr.microbatch.separate import separate
from automap.jaxpr.microbatch.separation import Sum


__all__ = ["MicrobatchProgram", "Operator", "Pass", "SampleDimension", "Sum", "separate"]
