"""What was run: the published models as decoders, and what each source says of all its runs.

A `Family` is what the runs of one source have in common and their rows do not say: which kernels
attention is, how weights are kept, how collectives run, and the machines' networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
import re
from typing import Any, Final

from models.decoder import AttentionBy, DecoderConfig, Layers, Remat, Weights


DEVICES: Final[Mapping[str, str]] = {
    "TPU v6e": "v6e",
    "h100_80gb": "h100",
    "H100 DGX": "h100",
    "DGX-H100": "h100",
    "a100_80gb": "a100",
    "a100_40gb": "a100-40gb",
    "A100-80G": "a100",
    "A100": "a100",
}
"""A row's chip -> device of the catalogue."""

JUDGED: Final[Mapping[str, tuple[str, ...]]] = {
    "H100": ("h100",),
    "A100": ("a100", "a100-40gb"),
    "v6e": ("v6e",),
}
"""The devices whose rows are judged together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the runs of a source have in common.

    `host_bytes_per_s` is a host's network in one direction; 0 is the catalogue's. `remat` says what
    a row's word means. `is_sharded` is ZeRO, whose collectives run beside kernels; other runs wait
    for theirs. `layers` are as the framework runs them.
    """

    name: str
    attention: AttentionBy
    weights: Weights
    remat: Mapping[str, Remat]
    is_sharded: bool
    layers: Layers = "unrolled"
    host_bytes_per_s: float = 0.0
    document: str


_GBIT: Final = 1e9 / 8

SOURCES: Final[Mapping[str, Family]] = {
    "llm-foundry": Family(
        name="PyTorch FSDP",
        attention="kernel",
        weights="cast",
        remat={"full": "whole", "none": "none"},
        is_sharded=True,
        document="mosaicml/llm-foundry, scripts/train/benchmarking/README.md: fully sharded, "
        "FlashAttention, 1600 Gb/s a host of A100",
    ),
    "vTrain": Family(
        name="Megatron-LM",
        attention="written",
        weights="apart",
        remat={"full": "whole"},
        is_sharded=False,
        host_bytes_per_s=800 * _GBIT,
        document="VIA-Research/vTrain, src/model/gpt_modeling.py and src/config.py: written-out "
        "attention with a fused softmax, every layer checkpointed, 800 Gb/s a host",
    ),
    "arXiv2205.05198": Family(
        name="Megatron-LM",
        attention="written",
        weights="apart",
        remat={"selective": "attention"},
        is_sharded=False,
        document="Korthikanti et al. 2022: written-out attention, which alone is made again",
    ),
    "dgxc-benchmarking": Family(
        name="NeMo",
        attention="kernel",
        weights="apart",
        remat={"": "none"},
        is_sharded=False,
        document="NVIDIA/dgxc-benchmarking: Megatron-Core, cuDNN attention",
    ),
    "NeMo archive": Family(
        name="NeMo",
        attention="kernel",
        weights="apart",
        remat={"": "none"},
        is_sharded=False,
        document="NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md",
    ),
    "tpu-recipes": Family(
        name="MaxText",
        layers="scanned",
        attention="kernel",
        weights="cast",
        remat={"custom/offload": "projections", "full": "layer"},
        is_sharded=True,
        document="AI-Hypercomputer/tpu-recipes and maxtext, "
        "benchmarks/maxtext_trillium_model_configs.py: fully sharded, a Pallas kernel for "
        "attention; queries, keys, values and what attention hands on are offloaded",
    ),
}
"""How a row's source begins -> its family."""


def _mpt(depth: int, d_model: int, heads: int) -> DecoderConfig:
    return _plain(depth, d_model, heads, vocab=50_368)


def _plain(depth: int, d_model: int, heads: int, vocab: int = 51_200) -> DecoderConfig:
    """A GPT: layer norms, learned positions, biases, the output is the embedding again."""
    return DecoderConfig(
        depth=depth,
        d_model=d_model,
        heads=heads,
        kv_heads=heads,
        d_head=d_model // heads,
        d_ff=4 * d_model,
        vocab=vocab,
        positions="learned",
        norm="layer",
        gated=False,
        bias=True,
        tied=True,
    )


def _llama(depth: int, d_model: int, heads: int, d_ff: int, **rest: Any) -> DecoderConfig:
    sizes: dict[str, Any] = {"kv_heads": 8, "vocab": 128_256} | rest
    return DecoderConfig(
        depth=depth, d_model=d_model, heads=heads, d_head=d_model // heads, d_ff=d_ff, **sizes
    )


DECODERS: Final[Mapping[str, DecoderConfig]] = {
    "MPT-125m": _mpt(12, 768, 12),
    "MPT-350m": _mpt(24, 1024, 16),
    "MPT-760m": _mpt(24, 1536, 12),
    "MPT-1b": _mpt(24, 2048, 16),
    "MPT-3b": _mpt(32, 2560, 20),
    "MPT-7b": _mpt(32, 4096, 32),
    "MPT-13b": _mpt(40, 5120, 40),
    "MPT-30b": _mpt(48, 7168, 56),
    "MPT-70b": _mpt(80, 8192, 64),
    "22B": _plain(48, 6144, 64),
    "530B": _plain(105, 20_480, 128),
    "1T": _plain(128, 25_600, 160),
    "GPT3-175B": _plain(96, 12_288, 96),
    "Llama2-7B": _llama(32, 4096, 32, 11_008, kv_heads=32, vocab=32_000),
    "Llama3.1-8B": _llama(32, 4096, 32, 14_336),
    "Llama3.1-70B": _llama(80, 8192, 64, 28_672),
    "LLAMA3_70B": _llama(80, 8192, 64, 28_672),
    "Llama3.1-405B": _llama(126, 16_384, 128, 53_248),
    "LLAMA3.1_405B": _llama(126, 16_384, 128, 53_248),
    "Mixtral-8x7B dropped cf1.25": _llama(
        32, 4096, 32, 14_336, vocab=32_000, experts=8, per_token=2, room=1.25
    ),
    "Nemotron4-15B": _llama(32, 6144, 48, 24_576, vocab=256_000, gated=False, norm="layer"),
    "Nemotron4-340B": _llama(96, 18_432, 96, 73_728, vocab=256_000, gated=False, norm="layer"),
}
"""By a row's name of the model. MPT: llm-foundry's yamls; GPT: the table of Korthikanti et al. 2022
and Brown et al. 2020; Llama: Touvron et al. 2023 and Grattafiori et al. 2024; Mixtral: Jiang et al.
2024; Nemotron: Parmar et al. 2024 and NVIDIA 2024."""

_GPT: Final = re.compile(r"GPT (?:[\d.]+B )?h(?P<width>\d+) L(?P<depth>\d+) a(?P<heads>\d+)")


def published_decoder(model: str) -> DecoderConfig | None:
    """The decoder of a row's model; None for one that is no such decoder."""
    match = _GPT.fullmatch(model)
    if match:
        return _plain(int(match["depth"]), int(match["width"]), int(match["heads"]))
    return DECODERS.get(model)


def decoder_as_run(model: str, family: Family, remat: str) -> DecoderConfig:
    """The decoder with what its source and its row say. Raises `KeyError` for another remat."""
    config = published_decoder(model)
    if config is None:
        raise KeyError(model)
    return replace(
        config,
        attention=family.attention,
        weights=family.weights,
        remat=family.remat[remat],
        layers=family.layers,
    )
