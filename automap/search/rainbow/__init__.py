"""Strategy `rainbow`: a Rainbow agent on the simulated step time, over the whole space of a mesh.

    `env`         the environment: what is decided in an episode, what every decision would cost,
                  and what the agent sees of it
    `strategy`    starts, training within the budget, second thoughts

Torch loads only when the strategy runs.

`automap.search.rainbow.strategy`  `rainbow`: learn on this one problem, from the best presets,
                                   and climb at the end
"""
