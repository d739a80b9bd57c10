"""Measure how readable the tree is: sizes, comments, long lines, names, and the graph of imports.

One column for each PATH (a folder or a file), or one for what users install and one for all.
`--check` holds these two against what the house allows, and exits with 1 if something is over.

    python -m scripts.measure_house                          # product and whole tree
    python -m scripts.measure_house automap/cost rl --list   # two folders, and where to look
    python -m scripts.measure_house --check

The measures of a column, each by the function of that name here:

- `sizes`: files, lines, and the median, 90th percentile and maximum of the lines of a file; the
  same of a function's lines, its decorators not counted, its docstring counted.
- `comments`: the share of lines with one, those for tools (`fmt:`, `noqa`, `type:`) not counted.
- `formatting`: lines over 100 columns, and places where the formatter is told to keep away.
- `names`: those that say how a thing was come by, not what it is: `of_*`, `*_of`, `found`.
- `graph`: modules that one other imports (crumbs of that other one), files with an import inside
  of a function, and circles: sets of files that import each other, and sets of sibling packages
  whose members do. Imports inside of functions and under TYPE_CHECKING count. A package's
  `__init__` imports nothing on its members' behalf, so it is no importer and no crumb.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
import re
import statistics
import sys
import tokenize
from typing import NamedTuple

import click
import grimp


ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("automap", "hlo_tools", "rl")
WHOLE = (*PRODUCT, "models", "scripts", "examples", "tests")
COLUMNS = 100
_FOR_TOOLS = re.compile(r"#\s*(fmt|noqa|type|pyright|ruff):[^-]*$")
# As the linter, E501, measures a line.
_AT_THE_END = re.compile(r"\s*#\s*(noqa|type|pyright):.*$")
_DIALECT = re.compile(r"of_\w+|\w+_of|found")

# What a check allows: at least, and less than.
LEAST_COMMENT_PERCENT = 3.0
SKIPS_BELOW, SINGLE_IMPORTERS_BELOW = 30, 60


class Token(NamedTuple):
    """One of Python's tokens; `kind` is a number of `tokenize`."""

    kind: int
    string: str
    line: int


@dataclass(frozen=True)
class Source:
    """A file and what stands in it."""

    path: Path
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """What Python's parser makes of the file."""
        return ast.parse(self.text)

    @cached_property
    def tokens(self) -> list[Token]:
        """Names, words of the language and comments."""
        with self.path.open("rb") as file:
            return [
                Token(token.type, token.string, token.start[0])
                for token in tokenize.tokenize(file.readline)
                if token.type in (tokenize.NAME, tokenize.COMMENT)
            ]

    @property
    def module(self) -> str:
        """The dotted name that others import."""
        dotted = ".".join(self.path.relative_to(ROOT).with_suffix("").parts)
        return dotted.removesuffix(".__init__")

    def at(self, line: int) -> str:
        """A place that an editor opens."""
        return f"{self.path.relative_to(ROOT)}:{line}"


@dataclass(frozen=True)
class Measure:
    """One row's value in one column, and the places a reader would look at."""

    value: str
    number: float = 0.0
    places: tuple[str, ...] = ()


Measures = dict[str, Measure]


def _count(places: Iterable[str]) -> Measure:
    listed = tuple(places)
    return Measure(str(len(listed)), len(listed), listed)


def _spread(lengths: list[int], percent: int) -> str:
    """Median, percentile and maximum."""
    if not lengths:
        return "-"
    ordered = sorted(lengths)
    high = ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
    return f"{statistics.median_low(ordered)} / {high} / {ordered[-1]}"


def sizes(sources: list[Source]) -> Measures:
    """Files, and the lines of files and of functions."""
    files = [len(source.lines) for source in sources]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        "files / lines": Measure(f"{len(files)} / {sum(files)}"),
        "file lines: median / p90 / max": Measure(_spread(files, 90)),
        "function lines: median / p95 / max": Measure(_spread(functions, 95)),
    }


def comments(sources: list[Source]) -> Measures:
    """A file's share is a place if it is under the least that a check allows."""
    lines = {source: len(source.lines) for source in sources}
    commented = {
        source: len(
            {
                token.line
                for token in source.tokens
                if token.kind == tokenize.COMMENT and not _FOR_TOOLS.match(token.string)
            }
        )
        for source in sources
    }
    percent = 100 * sum(commented.values()) / max(1, sum(lines.values()))
    bare = tuple(
        f"{source.at(1)} {commented[source]} of {lines[source]}"
        for source in sources
        if 100 * commented[source] < LEAST_COMMENT_PERCENT * lines[source]
    )
    return {"comment lines, %": Measure(f"{percent:.2f}", percent, bare)}


def formatting(sources: list[Source]) -> Measures:
    """Long lines, and places that are not formatted."""
    numbered = [
        (source, number, line)
        for source in sources
        for number, line in enumerate(source.lines, start=1)
    ]
    skips = (
        source.at(token.line)
        for source in sources
        if "fmt:" in source.text  # else it need not be taken apart
        for token in source.tokens
        if token.kind == tokenize.COMMENT and re.match(r"#\s*fmt:\s*(skip|off)", token.string)
    )
    return {
        f"lines > {COLUMNS} columns": _count(
            source.at(number)
            for source, number, line in numbered
            if len(_AT_THE_END.sub("", line)) > COLUMNS
        ),
        "fmt: skip": _count(skips),
    }


def names(sources: list[Source]) -> Measures:
    """Names that are prepositions and participles; each use counts."""
    places = [
        f"{source.at(token.line)} {token.string}"
        for source in sources
        for token in source.tokens
        if token.kind == tokenize.NAME and _DIALECT.fullmatch(token.string)
    ]
    return {
        "of_*, *_of": _count(place for place in places if not place.endswith(" found")),
        "found": _count(place for place in places if place.endswith(" found")),
    }


@dataclass(frozen=True)
class Imports:
    """Which modules of the product import which, and which sets of them import each other."""

    by_module: Mapping[str, Set[str]]
    packages: Set[str]

    @property
    def importers(self) -> Counter[str]:
        """How many modules import a module; none stands for one that none does."""
        return Counter(
            imported
            for module, others in self.by_module.items()
            if module not in self.packages
            for imported in others
            if imported not in self.packages
        )

    def circles_of_files(self) -> list[list[str]]:
        """Sets of modules, each of which reaches the others."""
        return _circles(self.by_module)

    def circles_of_packages(self) -> list[list[str]]:
        """Siblings that import each other: below each package, an import of a member counts as one
        of its package.
        """
        return [
            circle
            for parent in sorted(self.packages)
            for circle in _circles(self._between_children(parent))
            if any(child in self.packages for child in circle)
        ]

    def _between_children(self, parent: str) -> Mapping[str, Set[str]]:
        def child(module: str) -> str:
            head, dot, rest = module.partition(f"{parent}.")
            return f"{parent}.{rest.split('.')[0]}" if dot and not head else ""

        edges: dict[str, set[str]] = defaultdict(set)
        for module, others in self.by_module.items():
            for other in others:
                below, beside = child(module), child(other)
                if below and beside and below != beside:
                    edges[below].add(beside)
        return edges


@cache
def imports() -> Imports:
    """The product's imports as import-linter sees them."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    by_module = {
        module: graph.find_modules_directly_imported_by(module) for module in graph.modules
    }
    packages = {module for module in graph.modules if graph.find_children(module)}
    return Imports(by_module, packages)


def _circles(edges: Mapping[str, Set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                circles.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return circles


def _imports_in_functions(source: Source) -> Iterator[int]:
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield node.lineno


def graph(sources: list[Source]) -> Measures:
    """Modules with one importer, imports inside of functions, circles."""
    modules = {source.module for source in sources}
    importers = imports().importers
    by_imported: dict[str, set[str]] = defaultdict(set)
    for module, others in imports().by_module.items():
        for other in others:
            by_imported[other].add(module)
    lazy = {source: min(_imports_in_functions(source), default=0) for source in sources}
    circles = {
        "circles of packages": imports().circles_of_packages(),
        "circles of files": imports().circles_of_files(),
    }
    return {
        "modules with one importer": _count(
            f"{module} <- {min(by_imported[module] - imports().packages)}"
            for module in sorted(modules - imports().packages)
            if importers[module] == 1
        ),
        "files with lazy imports": _count(source.at(line) for source, line in lazy.items() if line),
        **{
            row: _count(" <-> ".join(circle) for circle in sets if modules & set(circle))
            for row, sets in circles.items()
        },
    }


ALL_PARTS = (sizes, comments, formatting, names, graph)


@cache
def _source(path: Path) -> Source:
    """A file, read once: the product is part of the whole."""
    return Source(path, path.read_text("utf-8"))


def measure(paths: Iterable[str], parts: Sequence[Callable[..., Measures]] = ALL_PARTS) -> Measures:
    """The measures of the Python files at or under these paths of the tree."""
    sources = [
        _source(file)
        for path in paths
        for file in ([ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py")))
    ]
    return {row: value for part in parts for row, value in part(sources).items()}


def excesses(product: Measures, whole: Measures) -> list[str]:
    """What the house does not allow, a sentence each; of the whole tree `formatting` is enough."""
    most = {
        "circles of packages": (product, 0),
        "circles of files": (product, 0),
        "of_*, *_of": (product, 0),
        "found": (product, 0),
        "modules with one importer": (product, SINGLE_IMPORTERS_BELOW - 1),
        f"lines > {COLUMNS} columns": (whole, 0),
        "fmt: skip": (whole, SKIPS_BELOW - 1),
    }
    counts = ((row, measures[row], allowed) for row, (measures, allowed) in most.items())
    over = [
        f"{row}: {c.value}, allowed {allowed}" for row, c, allowed in counts if c.number > allowed
    ]
    if product["comment lines, %"].number < LEAST_COMMENT_PERCENT:
        share = product["comment lines, %"].value
        over.append(f"comment lines, %: {share}, at least {LEAST_COMMENT_PERCENT}")
    return over


def _table(columns: Mapping[str, Measures]) -> str:
    rows = [["", *columns]]
    rows += [
        [row, *(measures[row].value for measures in columns.values())]
        for row in next(iter(columns.values()))
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--list", "listed", is_flag=True, help="Also print each place that is counted.")
@click.option("--check", is_flag=True, help="Exit with 1 if the house allows less.")
def main(paths: tuple[str, ...], listed: bool, check: bool) -> None:  # noqa: FBT001
    """Measure the Python files at or under PATHS, or the product and the whole tree."""
    if paths and check:
        raise click.UsageError("--check measures the product and the whole tree; give no paths")
    chosen = {path.rstrip("/"): (path.rstrip("/"),) for path in paths}
    columns = {
        name: measure(folders)
        for name, folders in (chosen or {"product": PRODUCT, "whole tree": WHOLE}).items()
    }
    click.echo(_table(columns))
    if listed:
        for name, measures in columns.items():
            for row, value in measures.items():
                if value.places:
                    click.echo(f"\n{name}, {row}:\n  " + "\n  ".join(value.places))
    if check:
        over = excesses(*columns.values())
        click.echo("\n".join(["", *over, "kept" if not over else "not kept"]))
        sys.exit(bool(over))


if __name__ == "__main__":
    main()
