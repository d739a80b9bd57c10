"""Numbers that were fitted to one version of a compiler, as data files in its backend's folder.

Each table of a file has the value with its unit, what it was fitted on, and how far it is off
there. A file is read once. Whoever uses a number is given a `SharedNumbers`,
`TileNumbers` or `ColumnNumbers`, so that a test can give another. `python -m
scripts.fit_backends` shows all of them, and holds those whose measurements were kept against them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
import tomllib
from typing import Any

import numpy as np


_NARROW_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFile:
    """A data file of a backend: `file` in its `folder`.

    `package` and `version` are what it was fitted to; both are empty where nothing was.
    """

    folder: str
    file: str
    package: str = ""
    version: str = ""

    def warning(self, installed: str | None) -> str | None:
        """What a plan should say if another version of the compiler than the fitted one is
        `installed`; None is none.
        """
        # A compiler that is not here says nothing of the machine that the plan is for.
        if not self.version or installed is None or installed == self.version:
            return None
        return (
            f"costs were fitted to {self.package} {self.version}, and {installed} is installed: "
            "what its compiler does with tiles, tables and rings may differ; "
            "automap verify asks it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNumbers:
    """Numbers that every backend has; the table of the same name says where each is from."""

    combine_bytes: int
    scatter_combine_bytes: int
    stored_multiple: int
    launch_gap_seconds: float
    memory_margin: float
    default_memory_share: float
    shared_error: float
    own_error: float
    error_reach: float
    alone_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TileNumbers:
    """Numbers of a backend whose memory and matrix unit hold tiles; the table of the same name in
    its file says what each is, and its unit.
    """

    kept_share: float
    spilled_share: float
    rivals_kept: float
    rivals_spilled: float
    chip_room: float
    chip_crowded: tuple[float, float]
    loop_claim: float
    small_tile_bytes: int
    small_rows_of_4_bytes: tuple[int, ...]
    small_rows_of_2_bytes: tuple[int, ...]
    group_gradient_share: float
    group_tile_parts: int
    fast_fill_bytes: int
    product_piece_seconds: float
    product_start_seconds: float
    narrow_seconds: float
    narrow_products: tuple[str, ...]
    lane_part_seconds: tuple[float, float]
    row_statistic_seconds: tuple[float, float]
    few_examples: int
    few_examples_passes: float
    fourier_longest_pass: int
    fourier_pass_bytes: float
    fourier_turn_bytes: float
    ring_element_bytes: float
    ring_kernels: float
    ring_flops_per_byte: tuple[tuple[str, float], ...]
    ring_fewest_devices: int
    ring_most_devices: int
    ring_held_share: float
    ring_rounded_bytes: int
    ring_made_bytes: int
    ring_sliced_bytes: int
    ring_transposed_bytes: int
    table_saved_bytes: int
    table_saved_bytes_per_update: int
    table_largest_share: float
    table_launches: int
    table_most_by_row: int

    def off_chip(self, share: np.ndarray) -> np.ndarray:
        """The part of an array that is in the device's memory, by the share of the chip's that it
        takes.
        """
        return _part(share, self.kept_share, self.spilled_share)

    def crowded_out(self, share: np.ndarray) -> np.ndarray:
        """The part of an array that is in the device's memory, by the share of the chip's that it
        takes with its rivals (`automap.cost.on_chip`).
        """
        return _part(share, self.rivals_kept, self.rivals_spilled)

    def small_rows(self, item_bytes: int) -> tuple[int, ...]:
        """The numbers of rows that smaller tiles hold, of numbers of so many bytes."""
        return {4: self.small_rows_of_4_bytes, 2: self.small_rows_of_2_bytes}.get(item_bytes, ())

    def least_ring_flops_per_byte(self, device_name: str) -> float:
        """From how many flops for each byte of a shard products go round a ring; what is said of no
        device is that of the one which needs most.
        """
        by_device = dict(self.ring_flops_per_byte)
        return by_device.get(device_name, max(by_device.values()))

    def register_seconds(self, item_bytes: int) -> float:
        """Of a core, for each number of so many bytes that a kernel takes through the registers,
        beyond its bytes.
        """
        return self.narrow_seconds if item_bytes <= _NARROW_BYTES else 0.0


def _part(share: np.ndarray, stays: float, leaves: float) -> np.ndarray:
    # 0 at `stays` and 1 at `leaves`, linear in the logarithm of the share.
    doublings = np.log2(np.maximum(share, stays) / stays) / np.log2(leaves / stays)
    return np.minimum(doublings, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNumbers:
    """Numbers of a backend that sums by blocks; the table of the same name in its file says what
    each is, and its unit.
    """

    column_block_bytes: int
    column_block_bytes_per_s: float
    column_split_rows: int
    strided_tile_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreNumbers:
    """Numbers of a backend whose kernels go through the memory of a device's cores; the table of
    the same name in its file says what each is, and its unit.
    """

    core_bytes_per_s: float
    core_row_seconds: float
    sort_share: float
    window_share: float
    line_share: float
    window_part: int
    kept_bytes: float
    place_bytes: int
    most_kept: int
    least_row_kept: int

    def keeps_greatest(self, row: int, kept: int) -> bool:
        """Whether a top-k of rows of so many keeps the greatest as it reads, and does not sort."""
        return kept <= self.most_kept and row >= self.least_row_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleNumbers:
    """Numbers of a backend whose collectives run beside kernels; the table of the same name in its
    file says what each is, and its unit.
    """

    unseen_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionNumbers:
    """Numbers of a backend whose convolutions a library computes; the table of the same name in its
    file says what each is, and its unit.
    """

    feature_bytes: float
    narrow_results: float
    gradient_share: float
    gradient_narrow_features: float
    vector_share: float
    vector_narrow_sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentNumbers:
    """Numbers of a backend whose products are slower where rows are not aligned; the table of the
    same name in its file says what each is, and its unit.
    """

    aligned_bytes: int
    operand_share_of_2_bytes: float
    operand_share_of_4_bytes: float
    word_share_of_2_bytes: float
    result_share_of_2_bytes: float
    result_share_of_4_bytes: float
    unsplit_sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionNumbers:
    """Numbers of a backend whose scatters add atomically; the table of the same name in its file
    says what each is, and its unit.
    """

    sector_bytes: int
    sector_seconds: float
    swap_seconds: float
    swap_round_seconds: float
    swap_lane_seconds: float
    wide_swap_lane_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationCall:
    """A call of a library that factors matrices: how they share the cores of a device, the seconds
    of a column, and the FLOPs that a core does in a second.
    """

    share: str
    column_seconds: float
    core_flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationNumbers:
    """Numbers of a backend whose factorizations wait for column after column; the table of the same
    name in its file says where each is from.
    """

    factorization_calls: tuple[tuple[str, str, float, float], ...]

    def calls(self) -> Mapping[str, FactorizationCall]:
        """Those that are listed, by their names."""
        return {
            name: FactorizationCall(share=share, column_seconds=seconds, core_flops_per_s=rate)
            for name, share, seconds, rate in self.factorization_calls
        }


# Every evaluator asks for the numbers; the files never change in a process.
@cache
def entries(file: FittedFile) -> Mapping[str, Mapping[str, Any]]:
    """The tables of a file, by the numbers' names."""
    folder = files("automap.backends").joinpath(file.folder)
    return tomllib.loads(folder.joinpath(file.file).read_text("utf-8"))


@cache
def shared_numbers(file: FittedFile) -> SharedNumbers:
    """The numbers of a file that every backend has."""
    return SharedNumbers(**_values(file, SharedNumbers))


@cache
def tile_numbers(file: FittedFile) -> TileNumbers:
    """The numbers of tiles of a file."""
    return TileNumbers(**_values(file, TileNumbers))


@cache
def column_numbers(file: FittedFile) -> ColumnNumbers:
    """The numbers of sums by blocks of a file."""
    return ColumnNumbers(**_values(file, ColumnNumbers))


@cache
def core_numbers(file: FittedFile) -> CoreNumbers:
    """The numbers of work within cores of a file."""
    return CoreNumbers(**_values(file, CoreNumbers))


@cache
def schedule_numbers(file: FittedFile) -> ScheduleNumbers:
    """The numbers of schedules of a file."""
    return ScheduleNumbers(**_values(file, ScheduleNumbers))


@cache
def convolution_numbers(file: FittedFile) -> ConvolutionNumbers:
    """The numbers of convolutions of a file."""
    return ConvolutionNumbers(**_values(file, ConvolutionNumbers))


@cache
def alignment_numbers(file: FittedFile) -> AlignmentNumbers:
    """The numbers of rows that are not aligned of a file."""
    return AlignmentNumbers(**_values(file, AlignmentNumbers))


@cache
def addition_numbers(file: FittedFile) -> AdditionNumbers:
    """The numbers of atomic additions of a file."""
    return AdditionNumbers(**_values(file, AdditionNumbers))


@cache
def factorization_numbers(file: FittedFile) -> FactorizationNumbers:
    """The numbers of factorizations of a file."""
    return FactorizationNumbers(**_values(file, FactorizationNumbers))


def _values(file: FittedFile, kind: type[Any]) -> dict[str, Any]:
    tables = entries(file)
    values = {field.name: tables[field.name]["value"] for field in fields(kind)}
    return {name: _hashable(value) for name, value in values.items()}


def _hashable(value: Any) -> Any:
    """Lists of TOML as tuples: the numbers are keys of caches."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
