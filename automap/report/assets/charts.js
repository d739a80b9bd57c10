// Charts of the report: bars, areas and timelines, each a plot of rows of the plan's values.
//
// A chart is a function of the width in pixels and of its figure; it gives the nodes that are put
// into the figure.
const PARTS = {
  compute: "var(--compute)",
  "exposed collectives": "var(--exposed)",
  "hidden collectives": "var(--hidden)",
  bubbles: "var(--bubble)",
};
// Seconds lost to each cause, beside the step.
const LOST = {
  collectives: "var(--exposed)",
  rematerialization: "var(--axis-4)",
  "padding to tiles": "var(--axis-5)",
  launches: "var(--quiet)",
  "products below the peak": "var(--axis-2)",
  "kernels that memory bounds": "var(--axis-3)",
};
const TIME = { ...PARTS, ...LOST };
const PASSES = {
  forward: "var(--forward)",
  backward: "var(--backward)",
  weights: "var(--axis-4)",
  "all-reduce": "var(--update)",
  update: "var(--update)",
};
const WORK = {
  forward: "var(--forward)",
  backward: "var(--backward)",
  update: "var(--update)",
  collectives: "var(--exposed)",
};
const KINDS = {
  "this plan": "var(--compute)",
  compiled: "var(--update)",
  preset: "var(--bubble)",
};
const FRONTIER = { frontier: "var(--axis-3)" };
const TOGETHER = { concurrent: "var(--axis-0)", merged: "var(--axis-2)", alone: "var(--bubble)" };
const MEMORY = {
  parameters: "var(--axis-0)",
  optimizer: "var(--axis-3)",
  "other state": "var(--axis-5)",
  inputs: "var(--axis-2)",
  activations: "var(--axis-1)",
  temporaries: "var(--bubble)",
};
const HELD = {
  stored: "var(--axis-0)",
  activations: MEMORY.activations,
  temporaries: MEMORY.temporaries,
};

const STYLE = { fontSize: "12px", background: "none" };
// The label of an axis is below its numbers.
const FRAME = { style: STYLE, marginBottom: 38 };
const ordinal = (colours) => ({ domain: Object.keys(colours), range: Object.values(colours) });
// Those colours that some rows have, for a legend.
const used = (colours, names) => Object.entries(colours).filter(([name]) => names.has(name));
const namesOf = (rows, field) => new Set(rows.map((row) => row[field]));
const marginFor = (texts, width) =>
  Math.min(16 + 6.9 * d3.max(texts, (text) => text.length), width * 0.4);
const shortened = (text, pixels) => {
  const most = Math.floor(pixels / 6.4);
  return text.length <= most ? text : most < 2 ? "" : `${text.slice(0, most - 1)}…`;
};

function timeChart(width) {
  const rows = data.time.bars;
  const totals = d3.rollups(rows, (each) => d3.sum(each, (row) => row.seconds), (row) => row.row);
  const { size, unit } = unitFor(SECOND_UNITS, d3.max(totals, ([, sum]) => sum) ?? 0);
  const names = totals.map(([name]) => name);
  return [
    legend(used(TIME, namesOf(rows, "part"))),
    Plot.plot({
      ...FRAME,
      width,
      height: 60 + 34 * names.length,
      marginLeft: marginFor(names, width),
      x: { label: unit, grid: true, nice: true },
      y: { label: null, domain: names },
      color: ordinal(TIME),
      marks: [
        Plot.barX(rows, {
          x: (row) => row.seconds / size,
          y: "row",
          fill: "part",
          ariaLabel: "text",
          inset: 0.5,
        }),
        Plot.ruleX([0]),
      ],
    }),
  ];
}

function profileChart(width) {
  const rows = data.time.profile;
  const lanes = namesOf(rows, "lane");
  const { size, unit } = unitFor(SECOND_UNITS, d3.max(rows, (row) => row.end) ?? 0);
  return [
    legend(used(WORK, namesOf(rows, "name"))),
    Plot.plot({
      ...FRAME,
      width,
      height: 52 + 88 * lanes.size,
      marginLeft: 52,
      marginRight: 84,
      ariaLabel: "What a device and its links do over the step",
      x: { label: unit, nice: true },
      y: { label: "busy", domain: [0, 1], ticks: [0.5, 1], tickFormat: "%" },
      fy: { label: null, domain: ["kernels", "collectives"].filter((lane) => lanes.has(lane)) },
      color: ordinal(WORK),
      marks: [
        Plot.rectY(rows, {
          x1: (row) => row.start / size,
          x2: (row) => row.end / size,
          y: "share",
          fy: "lane",
          fill: "name",
        }),
        Plot.ruleY([0]),
      ],
    }),
  ];
}

function memoryChart(width) {
  const { parts, limit, limit_text: limitText, peak } = data.memory;
  const { size, unit } = unitFor(BYTE_UNITS, Math.max(limit, peak));
  return [
    legend(used(MEMORY, namesOf(parts, "part"))),
    Plot.plot({
      ...FRAME,
      width,
      height: 112,
      marginLeft: 12,
      marginTop: 26,
      x: { label: unit, grid: true, domain: [0, (Math.max(limit, peak) / size) * 1.02] },
      y: { axis: null },
      color: ordinal(MEMORY),
      marks: [
        Plot.barX(parts, {
          x: (row) => row.bytes / size,
          y: () => "peak",
          fill: "part",
          ariaLabel: "text",
          inset: 0.5,
        }),
        Plot.ruleX([limit / size], { stroke: "var(--limit)", strokeWidth: 2 }),
        Plot.text([limitText], {
          x: limit / size,
          frameAnchor: "top",
          textAnchor: "end",
          dx: -4,
          dy: -14,
          fill: "var(--limit)",
        }),
      ],
    }),
  ];
}

function curveChart(width) {
  const { curve, limit, limit_text: limitText, peak } = data.memory;
  const { size, unit } = unitFor(BYTE_UNITS, Math.max(limit, peak));
  const rows = curve.flatMap((point) =>
    Object.keys(HELD).map((part) => ({ ...point, part, bytes: point[part] / size })),
  );
  return [
    legend(Object.entries(HELD)),
    Plot.plot({
      ...FRAME,
      width,
      height: 248,
      marginLeft: 52,
      x: { label: "operations that have begun", tickFormat: "%", domain: [0, 1] },
      y: { label: unit, grid: true, domain: [0, (Math.max(limit, peak) / size) * 1.06] },
      color: ordinal(HELD),
      marks: [
        Plot.rectY(rows, {
          x1: "start",
          x2: "end",
          y: "bytes",
          fill: "part",
          order: Object.keys(HELD),
          inset: 0,
        }),
        Plot.ruleY([limit / size], { stroke: "var(--limit)", strokeWidth: 2 }),
        Plot.text([limitText], {
          frameAnchor: "right",
          y: limit / size,
          dy: 9,
          dx: -4,
          fill: "var(--limit)",
        }),
        Plot.rectY(curve, {
          x1: "start",
          x2: "end",
          y1: 0,
          y2: (point) => d3.sum(Object.keys(HELD), (part) => point[part]) / size,
          fill: "transparent",
          ariaLabel: "text",
          inset: 0,
        }),
      ],
    }),
  ];
}

function plansChart(width, figure) {
  const field = figure.dataset.value;
  const rows = d3.sort(data.plans, (row) => row.seconds);
  const units = field === "seconds" ? SECOND_UNITS : BYTE_UNITS;
  const limit = data.memory.limit;
  const largest = d3.max(rows, (row) => row[field]);
  const { size, unit } = unitFor(units, largest);
  const limitMarks =
    field === "bytes"
      ? [Plot.ruleX([limit / size], { stroke: "var(--limit)", strokeWidth: 2 })]
      : [];
  const left = marginFor(rows.map((row) => row.name), width);
  const names = rows.map((row) => row.name);
  return [
    legend(used(KINDS, namesOf(rows, "kind"))),
    Plot.plot({
      ...FRAME,
      width,
      height: 58 + 30 * names.length,
      marginLeft: left,
      marginRight: 64,
      x: { label: unit, grid: true, nice: true, zero: true },
      y: { label: null, domain: names, tickFormat: (name) => shortened(name, left - 12) },
      color: ordinal(KINDS),
      marks: [
        Plot.barX(rows, {
          x: (row) => row[field] / size,
          y: "name",
          fill: "kind",
          fillOpacity: (row) => (row.fits ? 1 : 0.4),
          ariaLabel: "text",
          insetTop: 1,
          insetBottom: 1,
        }),
        ...limitMarks,
        Plot.text(rows, {
          x: (row) => row[field] / size,
          y: "name",
          text: (row) => `${d3.format(".4~g")(row[field] / size)}${row.fits ? "" : " ✗"}`,
          textAnchor: "start",
          dx: 5,
        }),
      ],
    }),
  ];
}

// The best step at each limit of memory, as a stair: more memory up to the next point buys nothing.
function frontierChart(width) {
  const points = d3.sort(data.frontier, (row) => row.bytes);
  const rows = data.plans.filter((row) => row.kind !== "compiled").concat(points);
  const bytes = unitFor(BYTE_UNITS, d3.max(rows, (row) => row.bytes));
  const seconds = unitFor(SECOND_UNITS, d3.max(rows, (row) => row.seconds));
  const x = (row) => row.bytes / bytes.size;
  const y = (row) => row.seconds / seconds.size;
  const kinds = { ...FRONTIER, ...KINDS };
  const limit = data.memory.limit / bytes.size;
  return [
    legend(used(kinds, namesOf(rows, "kind"))),
    Plot.plot({
      ...FRAME,
      width,
      height: 308,
      marginLeft: 60,
      x: { label: `peak memory, ${bytes.unit}`, grid: true, type: "log" },
      y: { label: `step, ${seconds.unit}`, grid: true, type: "log" },
      color: ordinal(kinds),
      marks: [
        Plot.line(points, { x, y, curve: "step-after", stroke: FRONTIER.frontier }),
        Plot.ruleX([limit], { stroke: "var(--limit)", strokeWidth: 2 }),
        Plot.dot(rows, { x, y, fill: "kind", r: 5, ariaLabel: "text" }),
      ],
    }),
  ];
}

function timelineChart(width) {
  const { stages, passes, seconds, left_out: leftOut } = data.timeline;
  const { size, unit } = unitFor(SECOND_UNITS, seconds);
  const left = Math.min(marginFor(stages, width), Math.max(190, width / 4));
  const end = leftOut ? d3.max(passes, (row) => row.end) : seconds;
  const pixels = (row) => ((row.end - row.start) / end) * (width - left - 20);
  const labelled = passes.filter((row) => row.label && pixels(row) > 8 * row.label.length + 4);
  const rest = leftOut ? [d3.create("p").text(`The first ${passes.length} passes; ${leftOut} more follow.`).node()] : [];
  return [
    legend(used(PASSES, namesOf(passes, "kind"))),
    Plot.plot({
      ...FRAME,
      width,
      height: 58 + 34 * stages.length,
      marginLeft: left,
      x: { label: unit, domain: [0, end / size] },
      y: { label: null, domain: stages, tickFormat: (name) => shortened(name, left - 12) },
      color: ordinal(PASSES),
      marks: [
        Plot.barX(passes, {
          x1: (row) => row.start / size,
          x2: (row) => row.end / size,
          y: "stage",
          fill: "kind",
          ariaLabel: "text",
          insetRight: 0.5,
        }),
        Plot.text(labelled, {
          x: (row) => (row.start + row.end) / 2 / size,
          y: "stage",
          text: "label",
          fill: "var(--ground)",
        }),
      ],
    }),
    ...rest,
  ];
}

function streamsChart(width) {
  const { boxes, seconds, lanes } = data.streams;
  const { size, unit } = unitFor(SECOND_UNITS, seconds);
  const stages = new Set(boxes.map((box) => box.stage)).size;
  // Wide enough to read an operator's name; the figure scrolls.
  const wide = Math.max(width, Math.min(90 * stages, 12000));
  const end = d3.max(boxes, (box) => box.end);
  const pixels = (box) => ((box.end - box.start) / end) * (wide - 60);
  // The operators of a group in their order, and what they take by themselves: of a stage at once
  // the longest group decides.
  const lines = (box) => [...box.labels, ...(box.alone ? [box.alone] : [])];
  const high = 14 + 12 * Math.min(d3.max(boxes, (box) => lines(box).length), 6);
  const label = (box) => lines(box).map((line) => shortened(line, pixels(box) - 4)).join("\n");
  return [
    legend(used(TOGETHER, namesOf(boxes, "kind"))),
    Plot.plot({
      ...FRAME,
      width: wide,
      height: 58 + high * lanes,
      marginLeft: 40,
      x: { label: unit, domain: [0, end / size] },
      y: { label: "group", domain: d3.range(lanes), tickFormat: (lane) => `${lane + 1}` },
      color: ordinal(TOGETHER),
      marks: [
        Plot.barX(boxes, {
          x1: (box) => box.start / size,
          x2: (box) => box.end / size,
          y: "lane",
          fill: "kind",
          ariaLabel: "text",
          insetRight: 1,
        }),
        Plot.text(boxes, {
          x: (box) => (box.start + box.end) / 2 / size,
          y: "lane",
          text: label,
          fill: "var(--ground)",
        }),
      ],
    }),
  ];
}
