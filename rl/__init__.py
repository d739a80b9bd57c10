"""Learning agents that know nothing of HLO: Rainbow DQN, REINFORCE on sequences, evolution.

    `rl.env`        what an environment is: arrays of observations, one row for each of n
                    environments
    `rl.config`     every number of the agent, also those that change in the course of a run
    `rl.train`      plays and learns; saves and resumes exactly
    `rl.agent`      chooses actions and learns from batches, with the networks of `rl.networks`
    `rl.replay`     prioritized replay of n-step transitions
    `rl.evolution`  learns weights from what whole games bring, without a gradient of it
    `rl.sequences`  a task of choosing an option for each of many elements, and REINFORCE's numbers
    `rl.reinforce`  learns such a task with the policy of `rl.sequence_policy`, by one of
                    `rl.controllers` or many of `rl.fleets`; saves and resumes exactly
    `rl.errors`     what goes wrong with checkpoints and configurations
    `rl.metrics`    what is logged, with the meaning of each number

Nothing is imported here: torch loads with the modules that need it.
"""
