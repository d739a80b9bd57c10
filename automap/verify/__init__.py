"""Holding a plan against what the compiler made of it.

`automap.verify.applied`     a plan run on the devices that are there, beside the step on one
`automap.verify.cache`       witnesses cached on disk: compiling takes minutes, and its answer
                             does not change
`automap.verify.comparison`  the prediction beside the witness: memory, collectives by kind and
                             axes, and where they differ
`automap.verify.compilers`   the compilers that can be witnesses, and the machine each compiles
                             for without having it
`automap.verify.compiling`   asking a compiler for its witness of a plan
`automap.verify.confirm`     `automap plan --verify`: the best candidates of a search, compiled
                             until one is confirmed to fit
`automap.verify.kernel_seconds`  the seconds of each kernel by what its compiler says of it
`automap.verify.near_limit`  plans near the limit of memory: compiled before they are called
                             fitting, if the compiler is here
`automap.verify.numerics`    does the planned step compute what the step computes? Both run on
                             the CPU, on the same inputs
`automap.verify.pipelines`  a pipeline held against a compiler, stage by stage
`automap.verify.process`     running a job in the compiler's process, and the flags that it sees
`automap.verify.program`     the step under its plan as a file that any process can compile
`automap.verify.stages`      the programs of a pipeline's stages, as files that can be compiled
`automap.verify.verification`  the result of a verification, and its options
`automap.verify.witness`     the witness: what a compiler said of a planned step; frozen, JSON,
                             the same in every process
"""
