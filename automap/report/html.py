"""Pieces of HTML, of texts that nobody has checked: every text is escaped, once, here.

Names come from plan files, which may hold anything: what is no visible character is shown as its
number (`automap.terminal.printable`), what HTML gives a meaning as an entity   -> in: `escaped`
"""

from collections.abc import Iterable, Mapping, Sequence
import html
from typing import Final

from automap.report.layers import LeafRow
from automap.terminal import printable


AXIS_COLOURS: Final = 6
"""How many axes have a colour of their own in the report's style."""


def escaped(text: object) -> str:
    """A text as HTML shows it, also between double quotes."""
    return html.escape(printable(str(text)))


def element(tag: str, inner: str, **attributes: str) -> str:
    """An element around HTML; attributes are texts, `class_` is `class`, `_` stands for `-`."""
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{pairs}>{inner}</{tag}>"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself where it is wider than the page; cells are HTML."""
    head = "".join(element("th", escaped(text), scope="col") for text in heads)
    body = "".join(
        "<tr>" + "".join(element("td", cell) for cell in cells) + "</tr>" for cells in rows
    )
    name = element("caption", escaped(caption))
    inner = f"{name}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    # A region that scrolls has to be reached by the keyboard, and so has a name.
    region = {"class_": "scroll", "tabindex": "0", "role": "region", "aria_label": caption}
    return element("div", element("table", inner), **region)


def tiles(numbers: Mapping[str, tuple[str, str]]) -> str:
    """What a number is -> (the number, what to know of it), side by side."""
    inner = "".join(
        f"<div><dt>{escaped(name)}</dt><dd><strong>{escaped(number)}</strong>"
        f"<span>{escaped(note)}</span></dd></div>"
        for name, (number, note) in numbers.items()
    )
    return element("dl", inner, class_="tiles")


def spec_chips(row: LeafRow, axes: Sequence[str]) -> str:
    """A chip for each dimension of leaves, in the colour of the first of the axes that split it."""
    chips = []
    for size, split in zip(row.shape, row.spec, strict=True):
        if split is None:
            chips.append(element("span", str(size), class_="chip"))
            continue
        style = f"chip axis-{axes.index(split[0]) % AXIS_COLOURS}"
        text = escaped(f"{size} over {'+'.join(split)}")
        chips.append(element("span", text, class_=style))
    return "".join(chips) or element("span", "one number", class_="chip")


def verdict(*, fits: bool) -> str:
    """Whether a plan fits, said in words and in colour."""
    return element("span", "fits" if fits else "does not fit", class_="good" if fits else "bad")
