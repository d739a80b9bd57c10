"""Strategy `rainbow`: a Rainbow agent on the simulated step time, over the whole space of a mesh.

    `decisions`   what is decided in an episode, in which order, each by a few moves
    `table`       one episode at a time: a point that is changed, with what every change would cost
    `features`    what the agent sees of it
    `env`         several tables as one environment of `rl`
    `strategy`    starts, training within the budget, second thoughts

Torch loads only when the strategy runs.

`automap.search.rainbow.strategy`  `rainbow`: learn on this one problem, from the best presets,
                                   and climb at the end
"""
