"""The models whose step times are compared, as targets of `automap calibrate --target` and `automap
plan`.

Those for the processor are sized for a step of 20 ms to 2 s on eight fake devices; those for one
GPU are the published sizes at a batch that fits in 80 GB.
"""

from dataclasses import replace

from models import (
    bert as bert_model,
    gpt as gpt_model,
    lenet as lenet_model,
    llama as llama_model,
    mlp as mlp_model,
    resnet as resnet_model,
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


def gpt_124m_bf16(batch: int = 16) -> Target:
    """GPT of 124M parameters in bfloat16."""
    return gpt_model.gpt_124m(batch=batch, dtype="bfloat16")


def bert_large(batch: int = 16) -> Target:
    """BERT of 24 layers of 1024."""
    return bert_model.bert(replace(bert_model.BERT_48, depth=24), batch=batch, seq=512).target


def resnet_50(batch: int = 64) -> Target:
    """ResNet-50 on 64 images."""
    return resnet_model.resnet_50(batch=batch)


def vit_b16(batch: int = 64) -> Target:
    """ViT-B/16 on 64 images in bfloat16."""
    return vit_model.vit_b16(batch=batch, dtype="bfloat16")


def t5_base(batch: int = 16) -> Target:
    """T5-base."""
    return t5_model.t5_base(batch=batch)


GPU_TARGETS = tuple(
    f"{__name__}:{make.__name__}"
    for make in (gpt_124m_bf16, bert_large, resnet_50, vit_b16, t5_base)
)
