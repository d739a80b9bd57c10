"""The models whose step times are compared, as targets of `automap calibrate --target` and `automap
plan`.

They are sized for a step of 20 ms to 2 s on eight fake devices.
"""

from dataclasses import replace

from models import (
    bert as bert_model,
    gpt as gpt_model,
    lenet as lenet_model,
    llama as llama_model,
    mlp as mlp_model,
    t5 as t5_model,
    vit as vit_model,
)
from models.training import Target


def gpt() -> Target:
    """A decoder of four layers."""
    config = replace(gpt_model.TINY, depth=4, d_model=128, positions=64, vocab=512)
    return gpt_model.gpt(config, batch=32, seq=64).target


def bert() -> Target:
    """An encoder of two layers."""
    config = replace(bert_model.TINY, d_model=128, positions=64, vocab=512)
    return bert_model.bert(config, batch=32, seq=64).target


def llama() -> Target:
    """A decoder with grouped attention and gated feed-forward layers."""
    return llama_model.llama(llama_model.TINY, batch=32, seq=64).target


def t5() -> Target:
    """An encoder and a decoder of two layers."""
    config = replace(t5_model.TINY, d_model=128, d_kv=16, d_ff=256, vocab=512)
    return t5_model.t5(config, batch=32, seq=32).target


def vit() -> Target:
    """A vision transformer."""
    return vit_model.vit(replace(vit_model.TINY, d_model=128), batch=64).target


def mlp() -> Target:
    """Wide layers and little data: parameters outweigh activations."""
    return mlp_model.mlp_step(replace(mlp_model.TINY, depth=4, width=1024), batch=256).target


def lenet() -> Target:
    """Convolutions, pooling, and a classifier."""
    return lenet_model.lenet_step(lenet_model.TINY, batch=256).target


CPU_TARGETS = tuple(
    f"{__name__}:{make.__name__}" for make in (gpt, bert, llama, t5, vit, mlp, lenet)
)
