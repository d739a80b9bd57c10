"""Auto-MAP's operator partitioning and auto data parallelism (Wang et al. 2020, sections 3.2, 3.3,
4.1 to 4.3).

On one mesh axis each of n decisions is to split or to keep whole; what counts is how much is split,
not how long a step takes.

    `choices`   the decisions, and which of them contradict each other
    `solvers`   the greatest count by an integer programme, and greedily, the largest first
    `game`      the paper's game, decision by decision; what is seen of it and rewarded, as in the
                paper and as we do it
    `agent`     the Rainbow agents that play it; needs the extra `rl`

`automap.search.counts.strategy`    strategies `opp` and `adp` of the command

`scripts/reproduce_automap.py` makes the paper's tables with it.
"""
