"""A step, or an HLO file, as a problem: traced, lowered, analysed, with what there is to decide."""

from automap.program.target import load_target
from automap.program.trace import Workload, read_workload, trace_step


__all__ = ["Workload", "load_target", "read_workload", "trace_step"]
