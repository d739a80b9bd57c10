"""The Python interface: `plan`, `compare`, `parallelize`, `simulate`, and the plan that users hold.

`automap.api.advise`        `advise`: which machine for a step
`automap.api.comparison`    `compare`: every preset and the search side by side
`automap.api.plan`          the plan that users hold: the record of what was decided
                            (`automap.plan`), which explains itself and runs a step
`automap.api.parallel`      `parallelize`, the decorator: a step that plans itself
`automap.api.planning`      `plan`, the command as a function
`automap.api.simulation`    `simulate`: a plan's step, task by task
`automap.api.verification`  `verify`: a plan held against what a compiler makes of it
"""
