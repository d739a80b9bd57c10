"""Auto-MAP's online training (Wang et al. 2020, sections 3.4 and 4.4): an agent that learns on the
one problem.

`automap.pipeline.online.game`      our game: from the first stage on an agent chooses where a
                                    stage's units end, then its points; the paper's filters
`automap.pipeline.online.pivots`    the paper's: where its points end, and devices follow
`automap.pipeline.online.strategy`  the Rainbow agents of both, as environments of `rl` that keep
                                    the best partition; ours is improved then. Needs the extra `rl`
"""
