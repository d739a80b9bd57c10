"""The report's HTML and values, without a browser: what the pictures are drawn from adds up to the
plan, and nothing of a plan file becomes markup.
"""

import base64
from collections import Counter
from dataclasses import replace
import hashlib
from html.parser import HTMLParser
import json
import re

from click.testing import CliRunner
from hypothesis import given, settings, strategies as st
import pytest

import automap
from automap.api.plan import Plan
from automap.cli import main
from automap.plan.levers import KeptRecord, LeversRecord, RematRecord, WithoutLeversRecord
from automap.quantities import bytes_text
from automap.report.html import element, escaped, table
from automap.report.layers import folded_leaves
from automap.report.page import report
from automap.report.page_data import page_data, summary_numbers
from automap.simulate.simulation import simulated_program
from automap.terminal import printable
from automap.topology import Topology
from tests.automap.report.samples import HOSTILE, pipelined, sample, streamed
from tests.steps import mlp


SAMPLE = sample()


class _Elements(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._is_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._is_script = False

    def handle_data(self, data):
        if self._is_script:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


@pytest.fixture(scope="module")
def planned() -> Plan:
    """A plan with a program, of a step with repeated parts."""
    step, args = mlp()
    return automap.plan(step, args, topology="v5e:2x4", preset="zero-3")


def _data(page: str) -> dict:
    scripts = _Elements(page).scripts
    return json.loads(next(text for attributes, text in scripts if "id" in attributes))


def test_a_page_needs_nothing_but_itself_and_runs_nothing_but_its_own_scripts(planned):
    page = _Elements(report(planned))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    run = [text for attributes, text in page.scripts if not attributes]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert digests == allowed


def test_the_frontier_is_a_picture_and_a_table_of_the_same(planned):
    rows = planned.search.frontier
    assert rows[0].step_seconds <= planned.predicted.step_seconds
    assert [r.peak_bytes for r in rows] == sorted((r.peak_bytes for r in rows), reverse=True)
    page = report(planned)
    drawn = _data(page)["frontier"]
    assert [(row["seconds"], row["bytes"]) for row in drawn] == [
        (row.step_seconds, row.peak_bytes) for row in rows
    ]
    assert 'data-chart="frontier"' in page
    assert bytes_text(rows[0].peak_bytes) in page[page.index("The best step at each limit of") :]
    limited = replace(planned, search=replace(planned.search, memory_limit_bytes=1))
    assert not any(row["fits"] for row in _data(report(limited))["frontier"])


def test_each_section_and_figure_has_a_name_and_can_be_reached(planned):
    elements = _Elements(report(planned)).elements
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for t, a in elements if t == "a"]
    assert set(links) <= set(ids)
    sections = [a for t, a in elements if t == "section"]
    assert {a["aria-labelledby"] for a in sections} <= set(ids)
    tags = Counter(tag for tag, _ in elements)
    assert tags["figure"] == tags["figcaption"] >= 6
    assert tags["table"] == tags["caption"]
    assert tags["h1"] == 1


def test_what_a_plan_file_holds_never_becomes_markup():
    """The same elements for hostile names as for harmless ones, and the same values."""

    def named(name: str) -> Plan:
        axes = {"data": f"data{name}", "model": f"model{name}"}
        text = json.dumps(SAMPLE.to_json())
        values = json.loads(text)

        def renamed(node):
            if isinstance(node, dict):
                return {key: renamed(value) for key, value in node.items()}
            if isinstance(node, list):
                return [renamed(value) for value in node]
            return axes.get(node, node) if isinstance(node, str) else node

        for field in ("mesh", "inputs", "outputs", "constraints", "predicted", "decisions"):
            values[field] = renamed(values[field])
        values["workload"]["target"] += name
        values["warnings"] = [f"a warning{name}"]
        values["decisions"][0]["reason"] += name
        values["decisions"][0]["group"] += name
        values["conflicts"][0]["at"] += name
        values["presets"][0]["name"] += name
        values["workload"]["arguments"] = [["batch", f"64{name}"]]
        return Plan.from_json(values)

    hostile, harmless = report(named(HOSTILE)), report(named("x"))
    assert "alert(1)</script>" not in hostile
    assert "\u202e" not in hostile
    with_names = [(tag, sorted(attributes)) for tag, attributes in _Elements(hostile).elements]
    assert with_names == [(tag, sorted(a)) for tag, a in _Elements(harmless).elements]
    assert _data(hostile)["axes"][0][0] == f"data{HOSTILE}"
    assert _data(hostile)["plans"][0]["name"].endswith(HOSTILE)


@settings(max_examples=30)
@given(st.text())
def test_escaped_text_is_read_back_as_what_can_be_printed(text):
    class Texts(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.attribute, self.tags = "", None, []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            self.attribute = dict(attrs)["title"]

        def handle_data(self, data):
            self.text += data

    parser = Texts()
    parser.feed(element("p", escaped(text), title=text))
    parser.close()
    assert parser.tags == ["p"]
    assert parser.text == printable(text)
    assert parser.attribute == printable(text)


def test_the_bars_of_time_are_the_step(planned):
    simulated = simulated_program(planned, planned.program, Topology.from_dict(planned.topology))
    data = page_data(planned, simulated)
    step = [bar["seconds"] for bar in data["time"]["bars"] if bar["row"] == "the step"]
    assert sum(step) == pytest.approx(planned.predicted.step_seconds)
    phases = [
        bar["seconds"]
        for bar in data["time"]["bars"]
        if bar["row"] in ("forward", "backward", "update")
    ]
    assert sum(phases) == pytest.approx(simulated.step_seconds)


def test_the_step_over_time_has_the_seconds_of_its_kernels_and_collectives(planned):
    simulated = simulated_program(planned, planned.program, Topology.from_dict(planned.topology))
    profile = page_data(planned, simulated)["time"]["profile"]

    def seconds(lane: str) -> float:
        rows = [row for row in profile if row["lane"] == lane]
        return sum(row["share"] * (row["end"] - row["start"]) for row in rows)

    # Shares are rounded to four digits.
    assert seconds("kernels") == pytest.approx(simulated.compute_seconds, rel=1e-3)
    assert seconds("collectives") == pytest.approx(simulated.collective_seconds, rel=1e-3)


def test_the_parts_of_memory_are_the_peak(planned):
    memory = page_data(planned, None)["memory"]
    assert sum(part["bytes"] for part in memory["parts"]) == pytest.approx(memory["peak"], abs=8)


def test_memory_over_the_step_reaches_the_peak_and_stands_on_the_page(planned):
    curve = page_data(planned, None)["memory"]["curve"]
    parts = ("stored", "activations", "temporaries")
    peak = max(sum(point[part] for part in parts) for point in curve)
    assert peak == pytest.approx(planned.predicted.peak_bytes, abs=3)
    assert curve[0]["start"] == 0 and curve[-1]["end"] == 1
    page = report(planned)
    assert 'data-chart="curve"' in page
    assert escaped(planned.memory_curve.held[0].name) in page
    assert 'data-chart="curve"' not in report(replace(planned, memory_curve=None))


def test_levers_stand_on_the_page_beside_the_plan_without_them(planned):
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=2**40, fits=False)
    kept = KeptRecord(at="1:out0", value=HOSTILE)
    group = RematRecord(kind="layers", blocks=("1", "5"), equations=4, kept=(kept,))
    levers = LeversRecord(remat=(group,), recompute_seconds=0.5, without=without)
    plan = replace(planned, levers=levers)
    page = report(plan)
    assert "rematerialization of 2 layers of 4 equations" in page
    assert escaped(HOSTILE) in page
    row = next(row for row in page_data(plan, None)["plans"] if row["name"] == "no levers")
    assert (row["seconds"], row["bytes"], row["fits"]) == (1.0, 2**40, False)
    known = replace(without, fastest_seconds=0.5, fastest_bytes=2**41)
    plan = replace(planned, levers=replace(levers, without=known))
    rows = {row["name"]: row for row in page_data(plan, None)["plans"]}
    assert rows["no levers, fastest"]["seconds"] == 0.5


def test_a_pipeline_shows_every_pass_of_every_stage():
    plan = pipelined(stages=3, microbatches=4)
    pipeline = page_data(plan, None)["timeline"]
    kinds = Counter(row["kind"] for row in pipeline["passes"])
    assert kinds == {"forward": 12, "backward": 12, "all-reduce": 3}
    assert pipeline["left_out"] == 0
    assert max(row["end"] for row in pipeline["passes"]) == pytest.approx(pipeline["seconds"])
    long = page_data(pipelined(stages=3, microbatches=2000), None)["timeline"]
    assert len(long["passes"]) + long["left_out"] == 3 * (2 * 2000 + 1)
    assert len(long["passes"]) <= 3000
    assert 'data-chart="timeline"' in report(plan)


@pytest.mark.parametrize("topology", ["haswell-2xk80", "2xv100"])
def test_a_placement_shows_every_task_on_its_device(topology):
    step, args = mlp()
    plan = automap.plan(step, args, topology=topology, space="placement", strategy="expert")
    timeline = page_data(plan, None)["timeline"]
    assert len(timeline["passes"]) == len(plan.placement.tasks)
    assert timeline["stages"] == [device.name for device in plan.placement.devices]
    by_operator = Counter()
    for task, row in zip(plan.placement.tasks, timeline["passes"], strict=True):
        operator = plan.placement.operators[task.operator]
        assert row["stage"] == plan.placement.devices[operator.device].name
        by_operator[task.operator] += row["end"] - row["start"]
    for number, operator in enumerate(plan.placement.operators):
        assert by_operator[number] == pytest.approx(operator.seconds)
    assert 'data-chart="timeline"' in report(plan)
    assert "this plan" in plan._repr_html_()


def test_streams_show_groups_of_a_stage_at_one_time():
    one = automap.plan(*mlp(), topology="1xv100", preset="data-parallel")
    boxes = page_data(streamed(one), None)["streams"]["boxes"]
    assert [(b["start"], b["end"], b["lane"]) for b in boxes] == [(0, 1, 0), (1, 3, 0), (1, 3, 1)]
    assert boxes[1]["labels"] == ["op b", "op c"]
    # A group has the seconds of its operators by themselves, written into its box.
    assert [b["alone"] for b in boxes] == ["", "1.5 s", "2 s"]


def test_leaves_are_folded_over_layers_and_none_is_lost():
    inputs = tuple(
        replace(
            SAMPLE.inputs[0],
            path=f"[0]['params']['layer_{layer}'].{name}",
            shape=(8, 16),
            spec=(None, ("model",)) if name == "up" else (None, None),
        )
        for layer in (0, 1, 2, 5)
        for name in ("up", "down")
    ) + (replace(SAMPLE.inputs[0], path="[1]", shape=(), spec=()),)
    plan = replace(SAMPLE, inputs=inputs, pipeline=None)
    rows = folded_leaves(plan)
    assert [(row.block, row.name, len(row.paths)) for row in rows] == [
        ("params.layer_0,1,2,5", "up", 4),
        ("params.layer_0,1,2,5", "down", 4),
        ("inputs", "1", 1),
    ]
    assert sorted(path for row in rows for path in row.paths) == sorted(x.path for x in inputs)
    # 8 x 16 bfloat16 numbers, over the four devices of `model` or whole.
    assert [row.device_bytes for row in rows] == [4 * 256 // 4, 4 * 256, 2]
    assert [row.axes for row in rows] == [("model",), (), ()]


def test_a_range_of_layers_stands_as_a_range(planned):
    leaves = tuple(
        replace(SAMPLE.inputs[0], path=f"[0].h[{n}].w", shape=(8, 8), spec=(None, None))
        for n in range(12)
    )
    (row,) = folded_leaves(replace(SAMPLE, inputs=leaves))
    assert (row.block, row.name) == ("h.0..11", "w")


def test_explain_and_plan_write_the_report(tmp_path):
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    target = ("tests.steps:mlp", "--topology", "v5e:2x4", "--preset", "zero-1")
    done = CliRunner().invoke(main, ["plan", *target, "-o", str(plan), "--report", str(page)])
    assert done.exit_code == 0, done.output
    first = page.read_text()
    done = CliRunner().invoke(main, ["explain", str(plan), "--report", str(page)])
    assert done.exit_code == 0, done.output
    assert f"report written to {page}" in done.stderr
    assert page.read_text() == first == Plan.load(plan).report(tmp_path / "third.html")
    assert (tmp_path / "third.html").read_text() == first


def test_a_report_that_cannot_be_written_is_refused_before_planning(tmp_path):
    nowhere = str(tmp_path / "missing" / "report.html")
    target = ("tests.steps:mlp", "--topology", "v5e:2x4")
    done = CliRunner().invoke(main, ["plan", *target, "--report", nowhere])
    assert done.exit_code == 2
    assert "--report" in done.output


def test_notebooks_show_plans_and_comparisons_escaped(planned):
    hostile = replace(planned, warnings=(HOSTILE,))
    shown = hostile._repr_html_()
    assert "<script" not in shown and "<img" not in shown
    assert escaped(HOSTILE) in shown
    tags = Counter(tag for tag, _ in _Elements(shown).elements)
    # A row for the plan, one for each preset, and one for each number at the top.
    assert tags["tr"] == 1 + 1 + len(planned.presets) + len(summary_numbers(planned))


def test_compare_has_the_rows_of_the_command():
    comparison = automap.compare(*mlp(), topology="v5e:2x4", strategy="greedy")
    names = [row.name for row in comparison.rows]
    assert {"data-parallel", "zero-3"} <= set(names)
    fitting = [row.step_seconds for row in comparison.rows if row.fits]
    assert comparison.rows[-1].step_seconds == min(fitting)
    assert comparison._repr_html_().count("<tr") == 1 + len(names)
    with pytest.raises(automap.InputError, match="preset: got one"):
        automap.compare(*mlp(), topology="v5e:2x4", preset="zero-3")


def test_tables_name_the_region_that_scrolls():
    html = table('"<b>', ("a",), [["1"]])
    (region, *_) = _Elements(html).elements
    assert region[1]["aria-label"] == '"<b>'
    assert region[1]["tabindex"] == "0"
