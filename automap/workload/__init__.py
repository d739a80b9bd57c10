"""A workload: a step and abstract arguments, or an HLO file, as an analysed problem."""

from automap.workload.target import load_target
from automap.workload.trace import Workload, read_workload, trace_step


__all__ = ["Workload", "load_target", "read_workload", "trace_step"]
