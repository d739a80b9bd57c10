"""The pretrained agent: divides a pipeline in milliseconds, from weights that come with the package
(after Auto-MAP's online inference, sections 3.5 and 4.5).

`heads`        what is known of stages that are not decided yet, and a good division of them
`states`       the stages that are decided, from the last one on, and what each next action would
               mean
`candidates`   the actions worth a look, as features without units
`network`      their values by the network, in numpy
`play`         greedy, beams and local search: `infer`
`problems`     generated problems to train on and to be held out on
`weights.safetensors`, made by scripts/train_pipeline_agent.py; docs/reports/pipeline_agent.md says
               how good it is

`automap.pipeline.agent.network`  the agent's network in numpy, and its weights' file: nothing
                                  of torch is needed to infer
`automap.pipeline.agent.play`     playing a problem: greedily, by beams, and with local search
                                  from the best
"""
