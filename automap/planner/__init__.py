"""Planners: a program and a topology -> a plan, one file for each space of plans.

`automap.planner.advice`    what would make a step fit that does not, and how it is listed
`automap.planner.decisions`   what was decided and why, and devices that do the same work
`automap.planner.levers`    the best plan with levers: microbatches and what is kept of the
                            forward pass, together with the sharding
`automap.planner.rates`       what a step does in a second, where its seconds go, and what would
                              help
`automap.planner.rebuild`     a plan's point again, priced, without a search
`automap.planner.records`     a search's outcome -> the plan's records
`automap.planner.remat`       which values of its forward pass a step keeps: a choice of each
                              block, and as the plan file has it
`automap.planner.sharding`    one program for all devices: workload and topology -> the best
                              sharding, through presets and a search
`automap.planner.spaces`      workload, topology and options -> the best plan of the space that
                              is asked for, and what all of them come to, side by side
`automap.planner.streams`     operators of one device in stages, at once or merged:
                              `--space streams`
"""
