"""How the wheel is laid out; everything else about the package is in pyproject.toml.

In this repository `hlo_tools` and `rl` are packages beside `automap`, with names that a user's own
folders have too. In a wheel they are `automap.hlo_tools` and `automap.rl`, and what imports them
says so: nothing but `automap` is installed, and a user's `rl` stays the user's. Line numbers are
those of the sources.
"""

import ast
from pathlib import Path
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


INNER = ("hlo_tools", "rl")
OUTER = "automap"


class BuildInside(build_py):
    """Builds the packages of `INNER` inside `OUTER`, unless the installation is editable."""

    def run(self) -> None:
        """Build."""
        if not self.editable_mode:
            self.packages = [inside(package) for package in self.packages or ()]
            self.package_dir = dict(self.package_dir or {}) | {inside(name): name for name in INNER}
            for name in INNER:  # what an earlier layout left in the folder is installed too
                shutil.rmtree(Path(self.build_lib, name), ignore_errors=True)
        super().run()

    def build_module(self, module, module_file, package):
        """Copy a module, with the imports that it has there."""
        outfile, is_copied = super().build_module(module, module_file, package)
        if not self.editable_mode:
            source = Path(module_file).read_text(encoding="utf-8")
            Path(outfile).write_text(with_imports_inside(source, module_file), encoding="utf-8")
        return outfile, is_copied


def inside(name: str) -> str:
    """A dotted name as it is in a wheel: `automap.rl.env` of `rl.env`, others as they are."""
    return f"{OUTER}.{name}" if name.partition(".")[0] in INNER else name


def with_imports_inside(source: str, file: str) -> str:
    """A module's text whose imports are those of a wheel; raises `SyntaxError` for one that has no
    such form.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if inside(alias.name) != alias.name]
            if names:
                raise SyntaxError(
                    f"{file}:{node.lineno}: import {names[0]}: write from ... import ..."
                )
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            line, at = lines[node.lineno - 1], node.col_offset
            old, new = f"from {node.module} import", f"from {inside(node.module)} import"
            if new != old:
                if not line[at:].startswith(old):
                    raise SyntaxError(f"{file}:{node.lineno}: expected {old} on one line")
                lines[node.lineno - 1] = line[:at] + new + line[at + len(old) :]
    return "".join(lines)


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildInside})
