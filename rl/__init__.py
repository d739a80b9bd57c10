"""Learning agents that know nothing of HLO: Rainbow DQN, its replay, networks and checkpoints.

    `rl.env`        what an environment is: arrays of observations, one row for each of n
                    environments
    `rl.config`     every number of the agent, also those that change in the course of a run
    `rl.train`      plays and learns; saves and resumes exactly
    `rl.agent`      chooses actions and learns from batches, with the networks of `rl.networks`
    `rl.replay`     prioritized replay of n-step transitions
    `rl.metrics`    what is logged, with the meaning of each number

Nothing is imported here: torch loads with the modules that need it.
"""
