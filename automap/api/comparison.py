"""`compare`: the command `automap compare` as a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from automap.api.call_plans import as_machine
from automap.api.keywords import with_options
from automap.api.records import FromRecord
from automap.config import TOPOLOGY, OptionKeywords, described_options, read_options
from automap.errors import InputError
from automap.planner import spaces
from automap.program.trace import lower_call
from automap.report.notebook import comparison_html
from automap.report.progress import SearchProgress
from automap.step.arguments import positional_arguments
from automap.step.rules import user_rules
from automap.step.step import as_step
from automap.topology import Topology, regular


class Comparison(FromRecord, spaces.Comparison):
    """Every preset and the search side by side.

    Each of `rows` has a name, seconds of a step, peak bytes of a device and whether it fits; the
    numbers are None where nothing is known. `notes` are what the search has to say, `advice` what
    would help if nothing fits.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        return comparison_html(self)


@with_options(tuple(o for o in described_options() if o.name != "preset"), own=(TOPOLOGY,))
def compare(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: str | Topology,
    **options: Unpack[OptionKeywords],
) -> Comparison:
    """Every preset, and the plan that the search finds, for a step; touches no device.

    Args:
        step: as for `automap.plan`.
        args: its positional arguments, of which shapes and types alone are read.
        kwargs: its keyword arguments, the same.
        **options: as for `automap.plan`; `preset` is none of them, as every preset is a row.

    Returns:
        A row for each preset and for what was searched; a notebook shows it as a table.

    Raises:
        InputError: a step that cannot be traced, or a bad option.
        ProfileError: a profile that cannot be read.
        TopologyError: an unknown topology, or a mesh that does not fit it.
    """
    if "preset" in options:
        raise InputError("preset: got one; allowed: none, as every preset is compared")
    checked = read_options(**options)
    given = as_step(step, mesh=checked.axes)
    call = given.enter(positional_arguments(args), kwargs or {}).traced()
    machine = regular(as_machine(topology, checked))
    with SearchProgress(checked.budget_seconds) as progress:
        workload = lower_call(
            call,
            platform=machine.platform,
            target=given.name,
            rules=user_rules(checked.rules),
            layers=checked.layers,
        )
        comparison = spaces.compare_spaces(
            workload,
            machine,
            checked,
            on_progress=progress.update,
            on_stages=progress.update_stages,
        )
    return Comparison.from_record(comparison)
