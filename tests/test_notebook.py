"""The notebooks of the docs run from their first cell to their last, each in an interpreter of its
own, and show what they say that they show.
"""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest


ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# Runs the cells of a notebook as a kernel does: the value of a cell's last line is shown, as HTML
# where it has that. Prints what each cell showed, as JSON.
RUN = r"""
import ast, contextlib, io, json, sys

names, shown = {"__name__": "__main__"}, []
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "a cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names) if last else None
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    shown.append({"text": out.getvalue(), "html": html})
json.dump(shown, sys.stdout)
"""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(notebook)],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    texts = "".join(cell["text"] for cell in shown)
    assert "the same loss: True" in texts
    assert "spec [" in texts
    tables = [cell["html"] for cell in shown if cell["html"]]
    assert len(tables) == 2 and all("zero-3" in html for html in tables)
    assert (tmp_path / "report.html").stat().st_size > 2**19


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_printed(notebook: Path):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_there_is_a_notebook():
    assert NOTEBOOKS
