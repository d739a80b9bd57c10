"""A step, or an HLO file, as a problem: traced, lowered, analysed, with what there is to decide.

`automap.program.check`          whether a traced step is the one that a plan was made for:
                                 inputs, outputs, equations, program, own shardings
`automap.program.contained`      running code that a command line names, without letting it
                                 change the process that plans
`automap.program.imposed`        shardings that the user imposes: the step's own code on inner
                                 values, inputs and outputs, and pins on inputs
`automap.program.problem`        what there is to decide about one workload: decision classes,
                                 folded over repeated layers
`automap.program.problem_build`  a module -> the problem of parallelizing it: graph, phases,
                                 roles, linkage, storage and classes
`automap.program.trace`          step -> HLO -> problem
`automap.program.work`           how much of a step's work runs over each class: what splitting
                                 it would divide
"""

from automap.program.target import load_target, naming_texts, target_example
from automap.program.trace import Workload, read_workload, trace_step


__all__ = [
    "Workload",
    "load_target",
    "naming_texts",
    "read_workload",
    "target_example",
    "trace_step",
]
