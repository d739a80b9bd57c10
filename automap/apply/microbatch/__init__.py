"""Steps in microbatches: an unmodified step, traced at two batch sizes, as a loop over parts of its batch."""

from automap.apply.microbatch.execute import MicrobatchedStep, microbatched
from automap.apply.microbatch.program import MicroProgram
from automap.apply.microbatch.separate import separate


__all__ = ["MicroProgram", "MicrobatchedStep", "microbatched", "separate"]
