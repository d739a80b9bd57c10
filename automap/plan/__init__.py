"""The plan as data: what was decided, what is predicted and why. Runs nothing, and loading one runs
no code.

`automap.plan.checks`    checks of the values in a plan; types are checked while reading
                         (`automap.plan.codec`)
`automap.plan.codec`     reading and writing frozen records as JSON, driven by their type
                         hints; no code is ever run
`automap.plan.degrees`   a plan as degrees of parallelism, the way MaxText and Megatron-LM are
                         configured, and back
`automap.plan.diff`      what differs between two plans, as text: one section per kind of fact,
                         empty ones left out
`automap.plan.explain`   a plan as text: the header and every decision, or one input or
                         decision with its reason
`automap.plan.file`      the plan file: bytes to JSON values and back
`automap.plan.levers`    the `levers` field of a plan: what trades time for memory, each as
                         data that is applied again without a search
`automap.plan.memory_curve`  the `memory_curve` field of a plan: what a device holds over the step,
                         and at the peak
`automap.plan.parts`     what a plan consists of: one frozen record per object of the plan file
`automap.plan.pipeline`  the `pipeline` field of a plan: stages on devices of their own, their
                         schedule, and what each is predicted to be
`automap.plan.placement`  the `placement` field of a plan: which operator runs on which device,
                         and when
`automap.plan.point`     the point of the space that a plan stands for, as the plan file keeps
                         it
`automap.plan.program`   the `program` field of a plan: what one device does in a step, so that
                         a plan is simulated without its step
`automap.plan.rates`     the numbers people ask for: utilization (MFU), rates, where the seconds
                         go, what would help
`automap.plan.refined`   what was compiled to choose a plan, as records and as text
`automap.plan.streams`   the `streams` field of a plan: the operators of one device in stages
                         that run one after another, each of operators that run at once or as
                         one
`automap.plan.record`    the plan: what the planner decided, what it predicts and why; frozen,
                         explainable, JSON
"""
