"""T5 v1.0: an encoder-decoder with relative positions (Raffel et al. 2020).

Pre-norm with bias-free RMSNorm and bias-free linear layers, ReLU feed-forward, tied embeddings with
logits scaled by d_model**-0.5, and attention scores that are not scaled (the query kernel starts
smaller instead). Encoder and decoder each have one table of relative position biases, used by the
self-attention of all their layers: in the original it lives in the first layer. Departures: AdamW
where the paper uses Adafactor; no dropout; sequences are packed, without padding masks; the decoder
is as long as the encoder.
"""

from dataclasses import dataclass, replace
import math

from flax import nnx
import jax
from jax import numpy as jnp

from models.layers import (
    Attention,
    AttentionConfig,
    FeedForward,
    Layers,
    apply_layers,
    causal_bias,
    make_layers,
)
from models.relative_position import RelativePosition
from models.training import Batch, DType, State, TrainStep, cross_entropy, train_step
