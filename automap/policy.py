"""The policy of `auto`: thresholds that were set on models, as data (`automap/policy.toml`).

The file has the value of each with its unit, why it is there, and the script and models it was set
with, or that they were not kept. It is read once; what uses a threshold gets a `Policy`, or takes
the one of the file, so that a test or a script can give another.
"""

from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
import tomllib


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The values of the file; its entry of the same name says why.

    Counts are integers. `*_seconds` are seconds of work on a nominal machine, which are counted and
    not timed. `far_start` is a ratio of two steps, `price_reach` a distance of logarithms of sizes,
    `*_error` are standard deviations of logarithms, and the rest are fractions: of a step
    (`close_start`, `bound_by_memory`, `lever_gain`, `searched_on_reach`, `open_gap`,
    `preset_margin`, `preset_margin_off_chip`, `memory_error_reach`, `least_improvement`,
    `near_preset`), of the work of a step (`least_*work*`), of a peak (`lever_least_fall`), or of a
    budget (`lever_*_share`).
    """

    small_space: int
    best_meshes: int
    ranked_plans: int
    far_start: float
    close_start: float
    walk_seconds: float
    bound_by_memory: float
    lever_gain: float
    lever_plain_share: float
    lever_remat_share: float
    lever_device_share: float
    lever_trial_share: float
    lever_least_fall: float
    lever_turns: int
    searched_on_reach: float
    exact_seconds: float
    open_gap: float
    open_walks: int
    open_walk_seconds: float
    preset_margin: float
    preset_margin_off_chip: float
    preset_rivals: int
    most_candidates: int
    least_work_of_candidate: float
    least_work_of_batch: float
    least_batch_work_of_frozen: float
    price_reach: float
    memory_error_reach: float
    shared_memory_error: float
    own_memory_error: float
    least_improvement: float
    near_preset: float
    refined_candidates: int
    stream_groups: int
    stream_group_size: int


@cache
def default_policy() -> Policy:
    """The policy of the file."""
    entries = tomllib.loads(files("automap").joinpath("policy.toml").read_text("utf-8"))
    # The entry's other keys (unit, why, set on) are for people. A missing entry is a KeyError here,
    # and a test compares the names.
    return Policy(**{field.name: entries[field.name]["value"] for field in fields(Policy)})
