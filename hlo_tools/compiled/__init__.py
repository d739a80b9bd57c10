"""What a compiled program says: its collectives, its schedule, and the program in an executable.

`hlo_tools.compiled.collectives`     the collectives of a compiled (partitioned) module: what
                                     really runs on the wires
`hlo_tools.compiled.estimates`       what compilers think of each instruction of a program that
                                     they compiled, by its name
`hlo_tools.compiled.replay`          the seconds of a compiled program by its own schedule, with
                                     transfers beside kernels
`hlo_tools.compiled.tpu_executable`  the program in a serialized TPU executable, where the
                                     runtime cannot read back what its own compiler made
"""
