// What all pictures of the report have in common: values of the plan, units, legends, and marks that
// say what they are to a pointer, to the keyboard and to a screen reader.
//
// A mark is an element of a picture with the attribute aria-label: all about it, line by line. In a
// picture one mark is in the order of the Tab key; the arrow keys go from mark to mark.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const AXIS_COLOURS = 6;
const MARKS = "rect[aria-label], circle[aria-label], path[aria-label]";

const axisNumber = new Map(data.axis_names.map((name, index) => [name, index % AXIS_COLOURS]));

// The unit that suits the largest of some values: {size, unit}.
const SECOND_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTE_UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

function unitFor(units, largest) {
  const [size, unit] = units.find(([each]) => largest >= each) ?? units.at(-1);
  return { size, unit };
}

// A list of colours with their names. `items` are [name, CSS colour].
function legend(items) {
  const list = d3.create("ul").attr("class", "legend");
  const item = list.selectAll("li").data(items).join("li");
  item.append("i").style("background", ([, colour]) => colour);
  item.append("span").text(([name]) => name);
  return list.node();
}

// A choice of one of several texts: a set of radio buttons that calls `chosen` with the text.
function choice(title, name, texts, first, chosen) {
  const set = d3.create("fieldset").attr("class", "choice");
  set.append("legend").text(title);
  const label = set.selectAll("label").data(texts).join("label");
  label
    .append("input")
    .attr("type", "radio")
    .attr("name", name)
    .property("checked", (text) => text === first)
    .on("change", (_, text) => chosen(text));
  label.append("span").text((text) => text);
  return set.node();
}

const tip = document.getElementById("tip");

function showTip(mark) {
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const box = mark.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(box.left + box.width / 2, innerWidth - width - 8);
  const below = box.bottom + 8;
  const top = below + height < innerHeight ? below : Math.max(box.top - height - 8, 8);
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${top}px`;
}

function hideTip() {
  tip.hidden = true;
}

// The marks of a drawn picture, of which the first can be reached with the Tab key.
function connectMarks(canvas) {
  const marks = [...canvas.querySelectorAll(MARKS)];
  marks.forEach((mark, index) => {
    mark.setAttribute("tabindex", index ? "-1" : "0");
    mark.setAttribute("role", "img");
  });
}

function moveFocus(event) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const mark = event.target.closest?.(MARKS);
  if (!mark || !(event.key in steps || event.key === "Home" || event.key === "End")) return;
  const marks = [...mark.closest(".canvas").querySelectorAll(MARKS)];
  const ends = { Home: 0, End: marks.length - 1 };
  const next = ends[event.key] ?? marks.indexOf(mark) + steps[event.key];
  const to = marks[Math.min(Math.max(next, 0), marks.length - 1)];
  mark.setAttribute("tabindex", "-1");
  to.setAttribute("tabindex", "0");
  to.focus();
  event.preventDefault();
}

document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest?.(`.canvas :is(${MARKS})`);
  if (mark) showTip(mark);
  else hideTip();
});
document.addEventListener("focusin", (event) => {
  const mark = event.target.closest?.(`.canvas :is(${MARKS})`);
  if (mark) showTip(mark);
  else hideTip();
});
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", hideTip, { capture: true, passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  else moveFocus(event);
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = root.dataset.theme ?? system;
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((each) => (each.open = true));
});
