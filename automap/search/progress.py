"""How far a search is that tries one choice after the other: of stages, or of placements."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChoiceProgress:
    """What a search looks at, how many choices of how many are done, the best step so far (inf:
    none).
    """

    what: str
    done: int
    of: int
    best_seconds: float
