// The machine with the mesh on it, and the model as the areas of its tensors; then all figures of
// the page are drawn, and drawn again when their width changes.
const MOST_DEVICES = 1024;
const CELL = 44;
// Between devices, so that the way of a collective shows.
const GAP = 12;
// A switch's devices are laid in rows so that the block is about so much wider than high.
const ASPECT = 1.8;

// Columns of a level's blocks of `width` x `height`: rings and lines are straight, by turns along
// both sides of the page, as the dimensions of a torus are.
function levelColumns(level, number, width, height) {
  if (level.kind !== "switch") return number % 2 ? 1 : level.size;
  const columns = d3.range(1, level.size + 1).filter((each) => level.size % each === 0);
  const aspect = (each) => (each * width) / ((level.size / each) * height);
  return d3.least(columns, (each) => Math.abs(Math.log(aspect(each) / ASPECT)));
}

// Where each device is, in cells: [x, y] of device 0 .. count - 1, and the blocks of the last level.
function machineLayout(levels, count) {
  let places = [[0, 0]];
  let [width, height] = [1, 1];
  let blocks = [];
  levels.forEach((level, number) => {
    // Dimensions of a torus lie close together; what leaves a host, and a third dimension, does not.
    const gap = number > 1 || (number && level.kind === "switch") ? 0.4 * number : 0;
    const columns = levelColumns(level, number, width + gap, height + gap);
    const corners = d3.range(level.size).map((i) => [
      (i % columns) * (width + gap),
      Math.floor(i / columns) * (height + gap),
    ]);
    blocks = gap ? corners.map(([x, y]) => ({ x, y, width, height })) : [];
    places = corners.flatMap(([x, y]) => places.map(([px, py]) => [px + x, py + y]));
    width = columns * (width + gap) - gap;
    height = Math.ceil(level.size / columns) * (height + gap) - gap;
  });
  return { places: places.slice(0, count), width, height, blocks };
}

// The coordinates along the mesh of each of its places, and their devices.
function meshPlaces() {
  const sizes = data.axes.map(([, size]) => size);
  const order = data.machine.order ?? d3.range(data.machine.count);
  return order.map((device, place) => {
    const along = [];
    let rest = place;
    for (const size of [...sizes].reverse()) {
      along.unshift(rest % size);
      rest = Math.floor(rest / size);
    }
    return { device, along };
  });
}

function machineChart(width, figure) {
  const { levels, count, stages } = data.machine;
  const shown = Math.min(count, MOST_DEVICES);
  const layout = machineLayout(levels, shown);
  const places = meshPlaces().filter(({ device }) => device < shown);
  const stageNumber = new Map((stages ?? []).flatMap((each, s) => each.map((d) => [d, s])));
  const wide = data.axes.filter(([, size]) => size > 1).map(([name]) => name);
  const ways = [...wide.map((name) => `axis ${name}`), ...(stages ? ["stages"] : [])];
  const way = ways.includes(figure.dataset.way) ? figure.dataset.way : (ways.at(-1) ?? "");
  const cell = Math.max(Math.min(CELL, (width - 24) / layout.width), 13);
  const svg = d3
    .create("svg")
    .attr("width", layout.width * cell + 24)
    .attr("height", layout.height * cell + 24)
    .attr("role", "group")
    .attr("aria-label", "Devices of the machine");
  const root = svg.append("g").attr("transform", "translate(12,12)");
  drawBlocks(root, layout, cell);
  const axis = data.axes.findIndex(([name]) => `axis ${name}` === way);
  if (axis >= 0) drawRing(root, layout, places, axis, cell);
  drawDevices(root, layout, places, cell, (place) => {
    if (axis < 0) return colourOf(`axis-${(stageNumber.get(place.device) ?? 0) % AXIS_COLOURS}`, 45);
    const part = place.along[axis] / Math.max(data.axes[axis][1] - 1, 1);
    return colourOf(`axis-${axis % AXIS_COLOURS}`, 8 + 52 * part);
  });
  const select = (text) => {
    figure.dataset.way = text;
    draw(figure);
    figure.querySelector("input:checked")?.focus();
  };
  const notes = levels.map((level) => level.text);
  if (shown < count) notes.push(`The first ${shown} of ${count} devices are drawn.`);
  return [
    ...(ways.length > 1 ? [choice("Shade by", "way", ways, way, select)] : []),
    svg.node(),
    d3.create("p").attr("class", "about").text(notes.join("; ")).node(),
  ];
}

const colourOf = (name, percent) =>
  `color-mix(in srgb, var(--${name}) ${percent.toFixed(0)}%, var(--ground))`;

function drawBlocks(root, layout, cell) {
  root
    .selectAll("rect.block")
    .data(layout.blocks)
    .join("rect")
    .attr("x", ({ x }) => x * cell - 6)
    .attr("y", ({ y }) => y * cell - 6)
    .attr("width", (block) => (block.width - 1) * cell + deviceSide(cell) + 12)
    .attr("height", (block) => (block.height - 1) * cell + deviceSide(cell) + 12)
    .attr("rx", 6)
    .attr("fill", "var(--panel)")
    .attr("stroke", "var(--line)");
}

const deviceSide = (cell) => cell - Math.min(GAP, cell / 3);

function drawDevices(root, layout, places, cell, fill) {
  const at = ({ device }) => layout.places[device];
  const side = deviceSide(cell);
  const group = root.selectAll("g.device").data(places).join("g");
  group.attr("transform", (place) => `translate(${at(place).map((x) => x * cell).join()})`);
  group
    .append("rect")
    .attr("width", side)
    .attr("height", side)
    .attr("rx", Math.min(5, cell / 5))
    .attr("fill", fill)
    .attr("stroke", "var(--quiet)")
    .attr("aria-label", ({ device, along }) => {
      const names = data.axes.map(([name], axis) => `${name} ${along[axis]}`);
      return `device ${device}\nin the mesh: ${names.join(", ") || "the only one"}`;
    });
  if (cell < 20) return;
  group
    .append("text")
    .attr("x", deviceSide(cell) / 2)
    .attr("y", deviceSide(cell) / 2)
    .attr("text-anchor", "middle")
    .attr("dominant-baseline", "central")
    .attr("font-size", Math.min(12, cell * 0.36))
    .attr("fill", "var(--ink)")
    .attr("pointer-events", "none")
    .text(({ device }) => device);
}

// The way from device to device of the group of the mesh's first place along an axis.
function drawRing(root, layout, places, axis, cell) {
  const group = places.filter(({ along }) => along.every((x, a) => a === axis || x === 0));
  const centre = ({ device }) => layout.places[device].map((x) => x * cell + deviceSide(cell) / 2);
  const curve = group.length > 2 ? d3.curveLinearClosed : d3.curveLinear;
  root
    .append("path")
    .attr("d", d3.line().curve(curve)(group.map(centre)))
    .attr("fill", "none")
    .attr("stroke", `var(--axis-${axis % AXIS_COLOURS})`)
    .attr("stroke-width", Math.max(cell / 5, 4))
    .attr("stroke-linejoin", "round");
}

// Tensors as areas: the fill of axes is one colour each, in stripes where there are several.
function axesFill(svg, axes) {
  if (!axes.length) return colourOf("bubble", 28);
  if (axes.length === 1) return colourOf(`axis-${axisNumber.get(axes[0])}`, 42);
  const id = `stripes-${axes.map((name) => axisNumber.get(name)).join("-")}`;
  if (svg.select(`#${id}`).empty()) {
    const pattern = svg
      .append("pattern")
      .attr("id", id)
      .attr("width", 12 * axes.length)
      .attr("height", 8)
      .attr("patternUnits", "userSpaceOnUse")
      .attr("patternTransform", "rotate(45)");
    axes.forEach((name, index) => {
      pattern
        .append("rect")
        .attr("x", 12 * index)
        .attr("width", 12)
        .attr("height", 8)
        .attr("fill", colourOf(`axis-${axisNumber.get(name)}`, 42));
    });
  }
  return `url(#${id})`;
}

function layersChart(width, figure) {
  const roles = [...new Set(data.layers.map((row) => row.role))];
  const first = roles.includes("parameter") ? "parameter" : roles[0];
  const role = roles.includes(figure.dataset.role) ? figure.dataset.role : first;
  const rows = data.layers.filter((row) => row.role === role && row.bytes > 0);
  const blocks = d3.groups(rows, (row) => row.block);
  const tree = d3
    .hierarchy({ children: blocks.map(([block, children]) => ({ block, children })) })
    .sum((row) => row.bytes ?? 0)
    .sort((a, b) => b.value - a.value);
  const height = width < 600 ? 560 : 460;
  d3
    .treemap()
    .size([width, height])
    .paddingInner(2)
    .paddingOuter(2)
    .paddingTop((node) => (node.depth === 1 ? 20 : 2))(tree);
  const svg = d3
    .create("svg")
    .attr("width", width)
    .attr("height", height)
    .attr("role", "group")
    .attr("aria-label", `Tensors of the model: ${role}`);
  drawTiles(svg, tree);
  const select = (text) => {
    figure.dataset.role = text;
    draw(figure);
    figure.querySelector("input:checked")?.focus();
  };
  const names = [...new Set(rows.flatMap((row) => row.axes))];
  const colours = names.map((name) => [`split over ${name}`, colourOf(`axis-${axisNumber.get(name)}`, 42)]);
  const whole = rows.some((row) => !row.axes.length) ? [["whole on each device that has it", colourOf("bubble", 28)]] : [];
  return [
    ...(roles.length > 1 ? [choice("Show", "role", roles, role, select)] : []),
    legend([...colours, ...whole]),
    svg.node(),
  ];
}

function drawTiles(svg, tree) {
  const block = svg.selectAll("g.block").data(tree.children ?? []).join("g");
  block
    .append("rect")
    .attr("x", (node) => node.x0)
    .attr("y", (node) => node.y0)
    .attr("width", (node) => node.x1 - node.x0)
    .attr("height", (node) => node.y1 - node.y0)
    .attr("rx", 4)
    .attr("fill", "var(--panel)")
    .attr("stroke", "var(--line)");
  block
    .append("text")
    .attr("x", (node) => node.x0 + 5)
    .attr("y", (node) => node.y0 + 14)
    .attr("font-size", 11.5)
    .attr("font-weight", 600)
    .attr("fill", "currentColor")
    .text((node) => (node.y1 - node.y0 < 18 ? "" : shortened(node.data.block, node.x1 - node.x0 - 8)));
  const tile = svg.selectAll("g.tile").data(tree.leaves().filter((node) => node.depth > 1)).join("g");
  tile
    .append("rect")
    .attr("x", (node) => node.x0)
    .attr("y", (node) => node.y0)
    .attr("width", (node) => Math.max(node.x1 - node.x0, 0.5))
    .attr("height", (node) => Math.max(node.y1 - node.y0, 0.5))
    .attr("fill", (node) => axesFill(svg, node.data.axes))
    .attr("aria-label", (node) => node.data.text);
  tile
    .filter((node) => node.y1 - node.y0 > 15)
    .append("text")
    .attr("x", (node) => node.x0 + 4)
    .attr("y", (node) => node.y0 + 13)
    .attr("font-size", 11.5)
    .attr("fill", "var(--ink)")
    .attr("pointer-events", "none")
    .text((node) => shortened(node.data.name, node.x1 - node.x0 - 6));
}

const CHARTS = {
  time: timeChart,
  profile: profileChart,
  memory: memoryChart,
  curve: curveChart,
  plans: plansChart,
  frontier: frontierChart,
  timeline: timelineChart,
  streams: streamsChart,
  machine: machineChart,
  layers: layersChart,
};

const figureWidth = (figure) => Math.max(Math.floor(figure.clientWidth), 280);

function draw(figure) {
  const canvas = figure.querySelector(".canvas");
  const width = figureWidth(figure);
  canvas.replaceChildren(...CHARTS[figure.dataset.chart](width, figure));
  figure.dataset.width = width;
  for (const svg of canvas.querySelectorAll("svg")) {
    svg.setAttribute("role", "group");
    if (!svg.hasAttribute("aria-label"))
      svg.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
  }
  connectMarks(canvas);
}

const figures = [...document.querySelectorAll("figure[data-chart]")];
// One after another, so that the page is there before the last of them; all of them before it is
// printed.
const undrawn = [...figures];
function drawNext() {
  if (!undrawn.length) return;
  draw(undrawn.shift());
  setTimeout(drawNext);
}
drawNext();
addEventListener("beforeprint", () => undrawn.splice(0).forEach(draw));
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries)
    if (target.dataset.width && figureWidth(target) !== Number(target.dataset.width)) draw(target);
});
figures.forEach((figure) => watcher.observe(figure));
