"""Operators of one device at once: stages of operators that run concurrently or are merged, found
by a dynamic programme (DOS: "Accelerate DNN Inference by Inter-Operator Parallelism", under review
for ICLR 2020; IOS: Ding et al., MLSys 2021).

`automap.streams.arrays`          the operators of a block as arrays, as the compiled functions of
                                  `automap.streams.costs` read them
`automap.streams.measured`        a schedule by what a device says of its stages, of which it is
                                  asked as few as decide
`automap.streams.operators`       the kernels of a step as operators: what is put into stages
`automap.streams.schedule`        a schedule of all blocks by one of the strategies, and its bound
`automap.streams.stage_programs`  a stage of operators as a program of its own, which a device can
                                  be asked about
`automap.streams.strategies`      the strategies that put a block's operators into stages, behind
                                  one protocol
"""
