"""Auto-MAP's online training (Wang et al. 2020, sections 3.4 and 4.4): an agent that learns on the
one problem.

`rules`     what it may choose: the paper's filters of actions
`game`      the game: what is seen, allowed and rewarded, as numba functions
`env`       many games as an environment of `rl`; keeps the best partition that was played
`strategy`  the Rainbow agent, and what improves its best; needs the extra `rl`

`automap.pipeline.online.game`      the game of a partition: from the first stage on an agent
                                    chooses where a stage's units end, then its points
`automap.pipeline.online.strategy`  `rainbow`: learn on the one problem, then improve the best
                                    partition that was played
"""
