"""Steps of `scripts.unseen_steps` that were written on 2026-11-30, to be read.

What a compiler makes of the fitted half was looked at on that day, kernel by kernel, and the law of
products' kernels was found there (docs/reports/schedules.md); of the others nothing was. They are
halved by their names in this module.
"""

from typing import Final

from scripts.unseen_simulated import (
    adapted_tasks,
    bayesian_regression,
    blended_layers,
    field_interactions,
    heat_inversion,
    learnt_forces,
    linear_recurrence,
    nucleus_sampling,
    point_convolution,
    residual_codes,
)
from scripts.unseen_trained import (
    aligned_letters,
    axial_attention,
    both_directions,
    diffusion_transformer,
    gated_linear_attention,
    grouped_queries,
    inverted_bottlenecks,
    masked_patches,
    off_policy_actor,
)


LATER: Final = (
    adapted_tasks,
    aligned_letters,
    axial_attention,
    bayesian_regression,
    blended_layers,
    both_directions,
    diffusion_transformer,
    field_interactions,
    gated_linear_attention,
    grouped_queries,
    heat_inversion,
    inverted_bottlenecks,
    learnt_forces,
    linear_recurrence,
    masked_patches,
    nucleus_sampling,
    off_policy_actor,
    point_convolution,
    residual_codes,
)
