"""The data of the examples: this repository's own documentation, byte by byte.

The last tenth is held out. Batches are a function of the step's number, so that a run which goes
on from a checkpoint sees what it would have seen.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np


DOCS = Path(__file__).resolve().parents[2] / "docs"
VOCABULARY = 256
_HELD_OUT = 10
_EVALUATED = 4


@dataclass(frozen=True)
class Text:
    """Batches of `rows` pieces of `length` bytes, each with the bytes that come next."""

    rows: int = 32
    length: int = 64

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """What step `number` learns from."""
        train = _bytes()[: -len(_bytes()) // _HELD_OUT]
        return self._pieces(train, np.random.default_rng(number))

    def held_out(self) -> list[dict[str, np.ndarray]]:
        """What the model is evaluated on, always the same."""
        rest = _bytes()[-len(_bytes()) // _HELD_OUT :]
        return [self._pieces(rest, np.random.default_rng(seed)) for seed in range(_EVALUATED)]

    def _pieces(self, text: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        starts = random.integers(0, len(text) - self.length - 1, self.rows)
        pieces = text[starts[:, None] + np.arange(self.length + 1)].astype(np.int32)
        return {"bytes": pieces[:, :-1], "next": pieces[:, 1:]}


@cache
def _bytes() -> np.ndarray:
    pages = sorted(DOCS.glob("how-to/*.md"))
    return np.frombuffer(b"".join(page.read_bytes() for page in pages), np.uint8)
