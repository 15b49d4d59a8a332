"use strict";
// Names come from others' data: they are only ever written as text, never as markup.

const report = JSON.parse(document.getElementById("content").textContent);
// Read off an element, because this page names no address, not even that of a namespace.
const SVG = document.getElementById("canvas").namespaceURI;
const MOST_ROWS = 30;
const TALL = 15; // rows, from where a table scrolls
const NARROW = 480;
const LOG_FROM = 25; // times the smallest value, where a linear axis would hide the small ones
const unit = report.loss.unit ? ` ${report.loss.unit}` : "";
// What the target is counted in, where somebody said so, behind a number; and behind an error, else its name.
const counted = report.target_unit ? ` ${report.target_unit}` : "";
const offBy = counted || ` in ${report.target}`;
const measure = report.target_unit ?? report.target;
const levels = report.levels ?? [];
const clients = report.clients;
// Of a model that was trained elsewhere only predictions are known.
const trained = report.trained !== false;
const somePersonal = clients.some((c) => c.has_personal);
let chosen = Math.min(Math.max(report.default_level ?? 0, 0), Math.max(levels.length - 1, 0));
const followers = []; // called when the confidence changes

// ---- building blocks

const element = (id) => document.getElementById(id);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const make = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

const known = (values) => values.filter((v) => typeof v === "number" && Number.isFinite(v));
const isKnown = (value) => known([value]).length === 1;
const here = () => levels[chosen] ?? {};
const inSomeLevel = (name) => levels.some((l) => l[name]);
const REASONS = {
  calibration: "nothing was cross-validated. The settings below say what was used.",
  pooled: "pooled training was not cross-validated.",
  worst_case: "it was not computed.",
  history: "the method proves no bounds.",
};
const why = (name) => report.absent?.[name] ?? REASONS[name] ?? "the reason was not recorded.";

// ---- words and numbers

const upToFour = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
// Numbers of a column that may be a year stand without a separator.
const year = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0, useGrouping: "min2" });
const minus = (text) => text.replace("-", "−");

function number(value) {
  if (!isKnown(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return powerOfTen(value);
  return minus((size >= 1000 ? year : upToFour).format(value));
}

function powerOfTen(value) {
  const [digits, power] = value.toExponential(2).split("e");
  const raised = [...String(Number(power))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  const factor = { 1: "", "-1": "−" }[Number(digits)] ?? `${minus(String(Number(digits)))} × `;
  return `${factor}10${raised}`;
}

const count = (value) => (isKnown(value) ? whole.format(value) : "–");
const percent = (share) => (isKnown(share) ? `${number(100 * share)}%` : "–");
const loss = (value) => (isKnown(value) ? number(value) + unit : "–");

/** A change in per cent. */
function signed(share) {
  if (!isKnown(share)) return "–";
  const size = Math.abs(100 * share).toFixed(1);
  const sign = Number(size) === 0 ? "" : share > 0 ? "+" : "−";
  return `${sign}${size}%`;
}


/** A column's numbers share their decimals, so that they can be compared down the column. */
function columnFormat(values) {
  const largest = Math.max(0, ...known(values).map(Math.abs));
  if (largest === 0 || largest >= 1e9 || largest < 1e-4) return number;
  const decimals = Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(largest))));
  const format = new Intl.NumberFormat("en-GB", {
    minimumFractionDigits: decimals,
    maximumFractionDigits: decimals,
  });
  return (value) => {
    if (!isKnown(value)) return "–";
    if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -decimals) return `<${format.format(10 ** -decimals)}`;
    return minus(format.format(value));
  };
}

function tenths(share) {
  if (!isKnown(share)) return "–";
  return share > 0 && share < 5e-4 ? "<0.1%" : `${(100 * share).toFixed(1)}%`;
}

function listed(words, last = "and") {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

const pen = document.createElement("canvas").getContext("2d");
pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
const widthOf = (text) => pen.measureText(text).width;

function fitted(text, width) {
  if (widthOf(text) <= width) return text;
  let kept = [...text];
  while (kept.length > 1 && widthOf(`${kept.join("")}…`) > width) kept = kept.slice(0, -1);
  return `${kept.join("").trimEnd()}…`;
}

// ---- what a mark says under the pointer or with the focus on it

const tooltip = element("tooltip");
let pointedAt = null;

function showTooltip(node, lines) {
  pointedAt = node;
  tooltip.replaceChildren(...lines.map((line, i) => make(i ? "div" : "strong", {}, line)));
  tooltip.hidden = false;
  placeTooltip();
}

function placeTooltip() {
  if (tooltip.hidden || !pointedAt) return;
  const box = pointedAt.getBoundingClientRect();
  const left = box.left + box.width / 2 - tooltip.offsetWidth / 2;
  const above = box.top - tooltip.offsetHeight - 8;
  const furthest = document.documentElement.clientWidth - tooltip.offsetWidth - 6;
  tooltip.style.left = `${Math.max(6, Math.min(left, furthest))}px`;
  tooltip.style.top = `${above < 4 ? box.bottom + 8 : above}px`;
}

const hideTooltip = () => (tooltip.hidden = true);

function mark(node, lines) {
  const title = draw("title", {}, lines.join(". "));
  build(node, { role: "img", tabindex: "-1" }, []).prepend(title);
  node.classList.add("mark");
  // Without the title for as long as the pointer is here, or the browser would show it as well.
  node.addEventListener("pointerenter", () => (title.remove(), showTooltip(node, lines)));
  node.addEventListener("pointerleave", () => (node.prepend(title), hideTooltip()));
  node.addEventListener("focus", () => showTooltip(node, lines));
  node.addEventListener("blur", hideTooltip);
  return node;
}

/** One stop of the Tab key for each picture; arrow keys go through its marks. */
function walkWithArrows(svg) {
  const marks = [...svg.querySelectorAll(".mark")];
  marks[0]?.setAttribute("tabindex", "0");
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    const at = marks.indexOf(document.activeElement);
    const next = Math.min(marks.length - 1, Math.max(0, at + steps[event.key]));
    marks.forEach((m, i) => m.setAttribute("tabindex", i === next ? "0" : "-1"));
    marks[next].focus();
  });
}

document.addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());
document.addEventListener("scroll", placeTooltip, { passive: true, capture: true });

// ---- figures

const redraws = new Map(); // by plot: the figure it shows now
let onPaper = false;

/** Draws at the width there is, and again when that changes; returns what draws again. A caption that depends on
 * where it is drawn is a function. */
function figure(id, caption, render, legend = []) {
  const host = element(id);
  const plot = host.querySelector(".plot");
  host.querySelector(".legend")?.replaceChildren(...legend.map(legendEntry));
  const redraw = () => {
    const words = typeof caption === "function" ? caption() : caption;
    host.querySelector("figcaption").textContent = words;
    const svg = render(onPaper ? paperWidth(plot) : Math.max(plot.clientWidth, 240));
    build(svg, { role: "group", "aria-label": `Picture. ${words}` }, []);
    walkWithArrows(svg);
    plot.replaceChildren(svg);
  };
  if (!redraws.has(plot)) watchWidth(plot);
  redraws.set(plot, redraw);
  redraw();
  return redraw;
}

/** About the width of a page, so that words in a picture are printed at their size. */
const PAPER_WIDTHS = [
  ["#well-figure", 320],
  ["#cost", 470],
  [".half, .pair", 500],
];
const paperWidth = (plot) => PAPER_WIDTHS.find(([where]) => plot.closest(where))?.[1] ?? 820;
/** So many rows have room in a picture. */
const mostRows = () => (onPaper ? 8 : MOST_ROWS);

function drawForPaper(paper) {
  onPaper = paper;
  redraws.forEach((redraw) => redraw());
}

window.addEventListener("beforeprint", () => drawForPaper(true));
window.addEventListener("afterprint", () => drawForPaper(false));

function watchWidth(plot) {
  let drawnAt = plot.clientWidth;
  const resized = () => {
    if (Math.abs(plot.clientWidth - drawnAt) <= 1) return;
    drawnAt = plot.clientWidth;
    redraws.get(plot)();
  };
  new ResizeObserver(() => requestAnimationFrame(resized)).observe(plot);
}

function absentFigure(id, words) {
  element(id).replaceChildren(make("p", { class: "absent" }, words));
}

function legendEntry({ shape, tone, label }) {
  const svg = draw("svg", { width: 26, height: 16, "aria-hidden": "true" });
  if (shape === "bar") svg.append(draw("rect", { x: 2, y: 3, width: 22, height: 10, class: `bar ${tone}` }));
  else if (shape === "line") svg.append(draw("line", { x1: 1, x2: 25, y1: 8, y2: 8, class: `line ${tone}` }));
  else svg.append(symbol(shape, 13, 8, tone));
  return make("span", {}, svg, label);
}

const OUTLINES = {
  square: "M-4.5-4.5h9v9h-9z",
  diamond: "M0-6.5 6.5 0 0 6.5-6.5 0z",
  up: "M0-6 6 5H-6z",
  down: "M0 6-6-5H6z",
};

function symbol(shape, x, y, tone) {
  if (shape === "circle") return draw("circle", { cx: x, cy: y, r: 4.8, class: `symbol ${tone}` });
  return draw("path", { d: OUTLINES[shape], transform: `translate(${x} ${y})`, class: `symbol ${tone}` });
}

// ---- axes

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((m) => m * power >= rough) ?? 10);
}

function linearScale(low, high, from, to, between = Math.max(80, widthOf(number(high)) + 24), leastStep = 0) {
  const place = (v) => from + ((Math.min(Math.max(v, low), high) - low) / (high - low)) * (to - from);
  const step = Math.max(leastStep, niceStep((high - low) / Math.max(2, Math.abs(to - from) / between)));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  place.ticks = Array.from({ length: last - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
  return place;
}

function logScale(low, high, from, to, between = null) {
  const share = (v) => Math.log(Math.min(Math.max(v, low), high) / low) / Math.log(high / low);
  const place = (v) => from + share(v) * (to - from);
  const powers = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); k++) powers.push(k);
  const within = (digits) =>
    powers.flatMap((k) => digits.map((d) => Number(`${d}e${k}`))).filter((v) => v >= low && v <= high);
  const room = (ticks) =>
    Math.abs(to - from) / (between ?? 16 + Math.max(0, ...ticks.map((t) => widthOf(number(t)))));
  const fits = (ticks) => ticks.length <= room(ticks);
  place.ticks = [[1, 2, 5], [1, 3], [1]].map(within).find(fits) ?? thinned(within([1]), room(within([1])));
  place.logarithmic = true;
  return place;
}

const thinned = (ticks, room) =>
  ticks.filter((_, i) => i % Math.ceil(ticks.length / Math.max(room, 1)) === 0);

/** From zero; logarithmic where the values span too much for that. */
function lossScale(values) {
  const given = known(values);
  const positive = given.filter((v) => v > 0);
  const [least, most] = [Math.min(...positive), Math.max(...positive)];
  if (positive.length && most > LOG_FROM * least && Math.min(...given) >= 0) {
    return (from, to) => logScale(least / 1.4, most * 1.1, from, to);
  }
  const [low, high] = [Math.min(0, ...given), Math.max(0, ...given)];
  return (from, to) => linearScale(low, high > low ? high * 1.03 : low + 1, from, to);
}

const lossLabel = (x) => {
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  return `Mean ${report.loss.name}${inUnits}${x.logarithmic ? " (log scale)" : ""}`;
};

function valueAxis(x, rows, tickWords = number) {
  return draw(
    "g",
    {},
    ...x.ticks.flatMap((tick) => [
      draw("line", { x1: x(tick), x2: x(tick), y1: 4, y2: rows, class: "grid" }),
      draw("text", { x: x(tick), y: rows + 17, "text-anchor": "middle", class: "tick" }, tickWords(tick)),
    ]),
  );
}

/** Rows with a name, what `marks(x, y)` draws on the common axis, and a note. Names stand above where narrow. */
function rowsChart(width, rows, { scale, label, height, above = width < NARROW, lines = [], tick = number }) {
  const widest = (widths, most) => (above ? 0 : Math.min(most, Math.max(0, ...widths) + 4));
  const names = widest(
    rows.map((r) => widthOf(r.name) + tagWidth(r.tag)),
    0.3 * width,
  );
  const notes = widest(
    rows.map((r) => widthOf(r.note ?? "")),
    0.3 * width,
  );
  const x = scale(names + 18, width - notes - 22);
  const each = height + (above ? 20 : 0);
  const bottom = rows.length * each + 12;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${bottom + 46}`, class: "chart" });
  svg.append(
    valueAxis(x, bottom, tick),
    axisLabel(typeof label === "function" ? label(x) : label, x, bottom, width),
  );
  const middle = (i) => 8 + i * each + (above ? 20 : 0) + height / 2;
  rows.forEach((row, i) => svg.append(...row.marks(x, middle(i))));
  svg.append(...lines.map((line) => uprightLine(line, x(line.value), bottom)));
  rows.forEach((row, i) =>
    svg.append(rowWords(row, above, above ? 8 + i * each + 15 : middle(i) + 4.5, names, width)),
  );
  return svg;
}

function axisLabel(label, x, bottom, width) {
  const words = fitted(label, width - 8);
  const half = widthOf(words) / 2 + 2;
  const centre = (x(-Infinity) + x(Infinity)) / 2;
  const at = Math.max(half, Math.min(width - half, centre));
  return draw("text", { x: at, y: bottom + 38, "text-anchor": "middle", class: "axis" }, words);
}

function uprightLine({ tone, words }, at, bottom) {
  const ends = { x1: at, x2: at, y1: 4, y2: bottom };
  const line = draw("line", { ...ends, class: `line ${tone}` });
  return words ? mark(draw("g", {}, draw("line", { ...ends, class: "hit" }), line), words) : line;
}

const tagWidth = (tag) => (tag ? 1.15 * widthOf(` ${tag}`) : 0); // it is bold

function rowWords({ name, tag, note }, above, y, names, width) {
  const tail = tag ? ` ${tag}` : "";
  const room = above ? width - widthOf(note ?? "") - 24 : names;
  const shown = fitted(name, room - tagWidth(tag));
  const at = above ? { x: 2 } : { x: names, "text-anchor": "end" };
  const words = draw("text", { ...at, y, class: "name" }, shown);
  if (shown !== name) words.append(draw("title", {}, name));
  if (tag) words.append(draw("tspan", { class: "tagged" }, tail));
  const group = draw("g", {}, words);
  if (note) group.append(draw("text", { x: width - 2, y, "text-anchor": "end", class: "aside" }, note));
  return group;
}

const guide = (x, y) => draw("line", { x1: x(-Infinity), x2: x(Infinity), y1: y, y2: y, class: "guide" });

function bar(x, from, to, y, height, tone, lines) {
  const [left, right] = [x(from), x(to)].sort((a, b) => a - b);
  const size = { x: left, y: y - height / 2, width: Math.max(right - left, 1.5), height };
  return mark(draw("rect", { ...size, class: `bar ${tone}` }), lines);
}

// ---- tables

/** Columns {label, group, value, text, classes, level}; a click on a head sorts by it. */
function sortableTable(table, captionId, caption, columns, rows, start) {
  const state = { ...start };
  const body = make("tbody", { role: "rowgroup" });
  // Said again, because on narrow screens tables are not laid out as such.
  table.setAttribute("role", "table");
  const heads = columns.map((column, i) => {
    const button = make(
      "button",
      { type: "button" },
      column.label,
      make("span", { class: "arrow", "aria-hidden": "true" }),
    );
    button.addEventListener("click", () => sortBy(i));
    const kind = column.words || column.classes === "words" ? "words" : "";
    return make("th", { role: "columnheader", scope: "col", class: kind }, button);
  });
  function sortBy(i) {
    state.up = state.column === i ? !state.up : true;
    state.column = i;
    fill();
  }
  function fill() {
    heads.forEach((head, i) => {
      if (i === state.column) head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    const { value } = columns[state.column];
    const sorted = [...rows].sort((a, b) => compared(value(a), value(b), state.up));
    const texts = columns.map((c) => (c.format ?? columnFormat)(rows.map(c.value)));
    body.replaceChildren(...sorted.map((row) => tableRow(row, columns, texts)));
  }
  table.replaceChildren(
    make("caption", { id: captionId }, make("span", {}, caption)),
    make("thead", { role: "rowgroup" }, ...groupRow(columns), make("tr", { role: "row" }, ...heads)),
    body,
  );
  table.parentElement.classList.toggle("tall", rows.length > TALL);
  fill();
  return fill;
}

function groupRow(columns) {
  if (!columns.some((c) => c.group)) return [];
  const groups = [...new Set(columns.map((c) => c.group))];
  const span = (group) => columns.filter((c) => c.group === group).length;
  // What has no name heads nothing.
  const cell = (group) =>
    group.trim()
      ? make("th", { role: "columnheader", scope: "colgroup", colspan: span(group), class: "group" }, group)
      : make("td", { role: "cell", colspan: span(group), class: "group" });
  return [make("tr", { role: "row", class: "groups" }, ...groups.map(cell))];
}

function tableRow(row, columns, texts) {
  const cells = columns.map((column, i) => {
    const value = column.value(row);
    if (column.words) return make("th", { role: "rowheader", scope: "row" }, value, ...(column.after?.(row) ?? []));
    const text = (column.before?.(row) ?? "") + texts[i](value) + (column.tail?.(row, texts[i]) ?? "");
    const named = [column.group?.trim(), column.label].filter(Boolean).join(": ");
    return make("td", { role: "cell", class: column.classes, "data-label": named, "data-value": isKnown(value) ? value : null }, text);
  });
  return make("tr", { role: "row", ...columns[0].data?.(row) }, ...cells);
}

/** What is unknown comes last, whichever way. */
function compared(a, b, up) {
  const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
  if (noA || noB) return noA - noB;
  const order = typeof a === "string" ? a.localeCompare(b, "en-GB", { numeric: true }) : a - b;
  return up ? order : -order;
}
