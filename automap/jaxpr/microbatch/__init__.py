"""Steps in microbatches: an unmodified step, traced at two batch sizes, as a loop over parts of its
batch.

`automap.runtime.microbatched` runs such a program on one device, `automap.runtime.pipeline` on the
devices of stages.

`automap.jaxpr.microbatch.batches`   which leaves of a call may be its batch
`automap.jaxpr.microbatch.build`     making equations: those of a traced function, over
                                     variables of a program that is being built
`automap.jaxpr.microbatch.loops`     a step's microbatches as loops: the program of `separate`
                                     as equations, its loops as `lax.scan`
`automap.jaxpr.microbatch.rules`     which operations can be done one microbatch at a time: one
                                     rule per primitive
`automap.jaxpr.microbatch.separate`  a traced step -> its program in microbatches
"""

from automap.jaxpr.microbatch.dependence import Operator
from automap.jaxpr.microbatch.program import MicrobatchProgram, Pass, SampleDimension, Sum
from automap.jaxpr.microbatch.separate import separate


__all__ = ["MicrobatchProgram", "Operator", "Pass", "SampleDimension", "Sum", "separate"]
