"""Small steps of many kinds that are in no zoo, in plain JAX: of none of them is there a rule.
`python -m scripts.compare_unseen` holds predictions of them against compilers.

Each function returns `(step, args)`. They are halved by their names (`scripts.halves`). What
compilers made of `READ` was looked at when the steps were new, and a few mechanisms that were read
there are in the prediction since (docs/reports/schedules.md); nothing was looked at of `ADDED`.
"""

from collections.abc import Callable
from typing import Final

from scripts.memory_targets import Target
from scripts.unseen_images import (
    contrastive_towers,
    diffusion_unet,
    nerf,
    penalized_gan,
    perceiver,
    video_classifier,
    vqvae,
)
from scripts.unseen_language import (
    beam_search,
    decoded_token,
    lora_on_int8,
    mixture_of_depths,
    muon_decoder,
    preference_optimization,
    rotary_decoder,
    rwkv,
)
from scripts.unseen_later import LATER
from scripts.unseen_learning import (
    learned_start,
    shuffled_ppo,
    soft_actor_critic,
    world_model,
)
from scripts.unseen_science import (
    continuous_filters,
    edge_means,
    feature_tokens,
    fourier_operator,
    gaussian_process,
    graph_attention,
    sinkhorn,
    triangle_updates,
)
from scripts.unseen_sequences import (
    diagonal_state_space,
    hidden_markov,
    hyena,
    neural_ode,
    recurrent_speech,
)
from scripts.unseen_signals import (
    chunked_state_space,
    conformer,
    dilated_sound,
    kalman_filter,
)
from scripts.unseen_vision import (
    depthwise_network,
    gaussian_splatting,
    momentum_contrast,
    shifted_windows,
)


Steps = tuple[Callable[[], Target], ...]
READ: Final[Steps] = (
    muon_decoder,
    lora_on_int8,
    decoded_token,
    preference_optimization,
    rwkv,
    mixture_of_depths,
    beam_search,
    vqvae,
    diffusion_unet,
    video_classifier,
    contrastive_towers,
    perceiver,
    nerf,
    penalized_gan,
    hyena,
    diagonal_state_space,
    recurrent_speech,
    hidden_markov,
    neural_ode,
    sinkhorn,
    gaussian_process,
    graph_attention,
    edge_means,
    fourier_operator,
    triangle_updates,
    learned_start,
    shuffled_ppo,
)
ADDED: Final[Steps] = (
    rotary_decoder,
    depthwise_network,
    shifted_windows,
    momentum_contrast,
    gaussian_splatting,
    chunked_state_space,
    conformer,
    dilated_sound,
    kalman_filter,
    soft_actor_critic,
    world_model,
    continuous_filters,
    feature_tokens,
)


def target_name(make: Callable[[], Target]) -> str:
    """The `module:function` of a step, by which it is of one half."""
    module = "scripts.unseen_later" if make in LATER else make.__module__
    return f"{module}:{make.__name__}"
