"""Advice as files: all rows as JSON, or a picture of rates over costs with the front in it."""

from importlib import import_module
import io
from pathlib import Path
from typing import Any, Final

from automap.advise.rows import Advice, AdviceRow
from automap.atomic_file import write_atomically
from automap.errors import InputError
from automap.plan.codec import encode
from automap.plan.file import layout


_PICTURES: Final = {".svg": "svg", ".png": "png", ".pdf": "pdf"}


def check_ending(path: str | Path) -> None:
    """Refuse a file of another kind, and a picture where nothing can draw it: an `InputError`."""
    ending = Path(path).suffix.lower()
    if ending in _PICTURES:
        _pyplot()
    elif ending != ".json":
        raise InputError(
            f"-o {str(path)[:200]!r}: allowed: a file that ends in .json, or in "
            f"{', '.join(_PICTURES)} for a picture"
        )


def save_advice(advice: Advice, path: str | Path) -> None:
    """Write the rows or the picture, by the file's ending, whole or not at all.

    Raises `InputError` for another ending, `PlanError` for a file that cannot be written.
    """
    check_ending(path)
    ending = Path(path).suffix.lower()
    content = layout(encode(advice)) if ending == ".json" else _drawn(advice, _PICTURES[ending])
    write_atomically(path, content)


def _drawn(advice: Advice, kind: str) -> bytes:
    """A point for each row that fits, a colour for each kind of device, a line along the front."""
    figure, axes = _pyplot().subplots(figsize=(9, 6), layout="constrained")
    fitting = [row for row in advice.rows if row.fits]
    has_prices = any(row.price_per_hour is not None for row in fitting)
    if has_prices:
        fitting = [row for row in fitting if row.price_per_hour is not None]
    for kind_name in dict.fromkeys(row.kind for row in fitting):
        rows = [row for row in fitting if row.kind == kind_name]
        axes.scatter([r.cost for r in rows], [r.rate for r in rows], s=18, label=kind_name)
    front = advice.front
    axes.plot([r.cost for r in front], [r.rate for r in front], color="0.5", zorder=0)
    for row in front:
        axes.annotate(_label(row), (row.cost, row.rate), fontsize=7, rotation=-30, va="top")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"{advice.currency or 'money'} an hour" if has_prices else "devices",
        ylabel=f"{advice.unit} a second",
        title=f"{advice.target}: what machines do, and the fastest at each cost",
    )
    if fitting:
        axes.legend(fontsize=8)
    out = io.BytesIO()
    # Without a date, so that the same rows are the same file.
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    _pyplot().close(figure)
    return out.getvalue()


def _label(row: AdviceRow) -> str:
    return f"{row.machine}, batch {row.batch:,}"


def _pyplot() -> Any:
    """matplotlib's, which is installed with the extra `figures` only."""
    try:
        matplotlib = import_module("matplotlib")
    except ImportError:
        raise InputError(
            "a picture needs matplotlib: pip install 'jax-automap[figures]', or write .json"
        ) from None
    # No window, whatever the user's own settings say.
    matplotlib.use("agg")
    return import_module("matplotlib.pyplot")
