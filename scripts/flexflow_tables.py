"""The tables of FlexFlow's page, from its rows by (part, model, cluster, devices)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scripts.flexflow_cases import MODELS
from scripts.flexflow_profile import PARTS as PROFILED, Profile
from scripts.tables import markdown


Row = dict[str, Any]
Rows = Mapping[tuple[Any, ...], Row]


def ratio(numerator: float, denominator: float) -> str:
    """How many times."""
    return f"{numerator / denominator:.2f}"


def throughput_table(kept: Rows) -> str:
    """Figure 7."""
    rows = []
    for of, row in sorted(kept.items()):
        if of[0] != "throughput":
            continue
        steps = [row["plans"][name]["step"] for name in ("data", "expert", "found")]
        rows.append(
            [
                *map(str, of[1:]),
                f"{row['operators']:,}",
                *(f"{row['batch'] / step:,.0f}" for step in steps),
                ratio(min(steps[:2]), steps[2]),
                f"{row['proposals']:,}",
                "yes" if row["is_optimum"] else "not shown",
                f"{row['search_seconds']:.0f}",
            ]
        )
    header = ["model", "cluster", "devices", "kernels", "data, samples/s", "expert", "found"]
    header += ["found / best of both", "proposals", "local optimum", "search, processor s"]
    return markdown(header, rows)


def assumptions_table(kept: Rows) -> str:
    """Figure 7 under other assumptions."""
    rows = []
    for of, row in sorted(kept.items()):
        if of[0] == "assumptions":
            for name, plans in row["assumptions"].items():
                data, others, best = plans["data"], plans["expert"], plans["found"]
                rows.append(
                    [
                        *map(str, of[1:]),
                        name,
                        *(f"{row['batch'] / plan['step']:,.0f}" for plan in (data, others, best)),
                        ratio(min(data["step"], others["step"]), best["step"]),
                        ratio(data["bytes"], best["bytes"]),
                        ratio(best["busy"], data["busy"]),
                    ]
                )
    header = ["model", "cluster", "devices", "assumption", "data, samples/s", "expert", "found"]
    header += ["found / best of both", "moved, data / found", "computed, found / data"]
    return markdown(header, rows)


def nmt_table(kept: Rows) -> str:
    """Figure 8."""
    row = kept.get(("throughput", "nmt", "flexflow-k80", 64))
    if row is None:
        return "Not made.\n"
    plans = row["plans"]
    rows = [
        [
            name,
            f"{plan['step'] * 1e3:,.0f}",
            f"{plan['bytes'] / 1e9:,.1f}",
            f"{plan['busy']:,.2f}",
            *(ratio(plan[key], plans["found"][key]) for key in ("step", "bytes", "busy")),
        ]
        for name, plan in plans.items()
    ]
    header = ["plan", "step, ms", "moved, GB", "computed, s", "step / found's"]
    return markdown([*header, "moved / found's", "computed / found's"], rows)


def automated_table(kept: Rows) -> str:
    """Figure 10."""
    rows = []
    papers = {"devices": "3.4 to 3.8", "optcnn": "1.2 to 1.6; AlexNet and ResNet 1"}
    for of, row in sorted(kept.items()):
        if of[0] in papers:
            steps = row["step"], row["found"]
            cells = [f"{step * 1e3:,.1f}" for step in steps]
            optimum = "yes" if row["is_optimum"] else "not shown"
            rows.append([*map(str, of), *cells, ratio(*steps), optimum, papers[of[0]]])
    header = ["space", "model", "cluster", "devices", "its best step, ms", "found, ms"]
    return markdown([*header, "its / found", "local optimum", "the paper"], rows)


# Table 4: seconds of a search by full simulation, and how many times delta simulation is faster.
PAPER: Mapping[int, Sequence[tuple[float, float]]] = {
    4: ((0.11, 2.9), (14, 3.4), (1.4, 3.2), (16, 2.2), (21, 2.3), (40, 2.5)),
    16: ((1.4, 2.9), (388, 5.0), (22, 3.1), (404, 2.4), (327, 2.7), (998, 3.0)),
    64: ((18, 3.0), (8817, 6.9), (515, 3.3), (4404, 3.0), (3406, 3.6), (8982, 4.1)),
}


def pricing_table(kept: Rows) -> str:
    """Table 4."""
    rows = []
    for of, row in sorted(kept.items()):
        if of[0] == "pricing":
            seconds, count = row["seconds"], row["proposals"]
            paper = PAPER[of[3]][list(MODELS).index(of[1])]
            rows.append(
                [
                    *map(str, of[1:]),
                    f"{count}",
                    *(f"{seconds[k] / count * 1e3:,.1f}" for k in ("rebuilt", "delta", "within")),
                    ratio(seconds["rebuilt"], seconds["delta"]),
                    ratio(seconds["rebuilt"], seconds["within"]),
                    f"{paper[1]}",
                    f"{paper[0]:g} / {paper[0] / paper[1]:.2g}",
                ]
            )
    header = ["model", "cluster", "devices", "proposals", "full, ms", "Algorithm 2", "within"]
    header += ["full / Algorithm 2", "full / within", "the paper's full / delta"]
    return markdown([*header, "its search by full / delta, s"], rows)


def profile_table(kept: Rows) -> str:
    """Where the seconds of a proposal go."""
    rows = []
    for of, row in sorted(kept.items()):
        if of[0] == "pricing":
            it = Profile(**row["profile"])
            rows.append(
                [
                    *map(str, of[1:]),
                    f"{it.tasks:,}",
                    *(f"{it.seconds[part] * 1e3:,.2f}" for part in PROFILED),
                    f"{it.moved:.0%}",
                    ratio(it.full(), it.ideal()),
                ]
            )
    header = ["model", "cluster", "devices", "tasks", *(f"{part}, ms" for part in PROFILED)]
    return markdown([*header, "tasks with other times", "full / ideal delta"], rows)


def restarts_table(kept: Rows) -> str:
    """What of a full simulation is done before the first change."""
    rows = []
    for of, row in sorted(kept.items()):
        if of[0] == "restarts":
            share = row["before"]
            its = [f"{row['proposals']}", f"{share:.1%}", f"{1.0 / (1.0 - share):.2f}"]
            rows.append([*map(str, of[1:]), *its])
    header = ["model", "cluster", "devices", "proposals", "tasks before the first change"]
    return markdown([*header, "simulate / restarted"], rows)


TRAINED_ON = ("flexflow-p100", 16)


def trained(kept: Rows) -> Mapping[str, tuple[Sequence[float], Mapping[str, float]]]:
    """For each model that was trained its losses, and the step seconds of its plans."""
    runs = {}
    for of, row in sorted(kept.items()):
        simulated = kept.get(("throughput", *of[1:]))
        if of[0] == "training" and simulated is not None:
            plans = {name: simulated["plans"][name]["step"] for name in ("data", "found")}
            runs[of[1]] = row["losses"], plans
    return runs


def training_table(kept: Rows) -> str:
    """Figure 9."""
    rows = []
    for model, (losses, plans) in trained(kept).items():
        seconds = {name: len(losses) * step for name, step in plans.items()}
        rows.append(
            [
                model,
                TRAINED_ON[0],
                f"{TRAINED_ON[1]}",
                f"{len(losses)}",
                f"{losses[0]:.2f} to {losses[-1]:.2f}",
                *(f"{seconds[name]:.2f}" for name in ("data", "found")),
                f"{1 - seconds['found'] / seconds['data']:.0%}",
                "38 % (beside TensorFlow)" if model == "inception-v3" else "-",
            ]
        )
    header = ["model", "cluster", "devices", "steps", "loss", "data, s", "found, s", "less"]
    return markdown([*header, "the paper"], rows)


TABLES: Mapping[str, Callable[[Rows], str]] = {
    "throughput": throughput_table,
    "assumptions": assumptions_table,
    "nmt": nmt_table,
    "automated": automated_table,
    "pricing": pricing_table,
    "profile": profile_table,
    "restarts": restarts_table,
    "training": training_table,
}
