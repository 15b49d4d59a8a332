// What each feature does: its share of the prediction as a curve, or as a bar for each level.

const MOST_CURVES = 12; // drawn at first
const MOST_PAIRS = 6; // pairs of features that are drawn
const MOST_STRIPS = 8; // clients whose rows are shown below a curve
const STRIP = 15;
const MOST_NAME = 80; // pixels for a client's name beside its strip

function curves() {
  const { columns, rows_here: rowsHere } = report.curves;
  const pairs = (report.curves.pairs ?? []).slice(0, MOST_PAIRS); // none in earlier reports
  const several = Array.isArray(columns[0].values[0]);
  const sum =
    report.loss.log_link ? "The logarithm of the prediction" : report.task === "regression" ? "The prediction" : several ? "The score of a class" : "The score (the logarithm of the odds)";
  const inUnit = report.task === "regression" && !report.loss.log_link ? counted : "";
  element("curves-words").textContent =
    `${sum} is a sum: ${several ? "a number of its own" : number(report.intercept) + inUnit} for a row that is average in ` +
    "everything, plus what each feature adds. All pictures have the same upright axis, and the features with the largest effect " +
    "come first. A curve says what the model uses, not what causes the outcome." +
    (rowsHere ? "" : " Rows are at the sites: where they lie is not shown, and curves are drawn over the agreed range.");
  const labels = several ? (report.classes ?? columns[0].values[0].map((_, k) => `class ${k + 1}`)) : [null];
  element("curves-legend").replaceChildren(...curvesLegend(columns, rowsHere).map(legendEntry));
  const more = element("curves-more");
  let shown = columns.slice(0, MOST_CURVES);
  let at = 0;
  const show = () => {
    element("curves").replaceChildren(...shown.map((column) => multiple(column, at, labels[at])));
    element("pairs").replaceChildren(...pairs.map((pair) => ofPair(pair, at, labels[at])));
  };
  if (columns.length > shown.length) {
    more.hidden = false;
    const button = more.querySelector("button");
    button.textContent = `Show all ${count(columns.length)} features`;
    button.addEventListener("click", () => {
      shown = columns;
      more.hidden = true;
      show();
      drawMultiples();
    });
  }
  if (several) {
    const select = element("curves-class");
    element("curves-class-choice").hidden = false;
    select.replaceChildren(...labels.map((label, k) => make("option", { value: k }, label)));
    select.addEventListener("change", () => {
      at = Number(select.value);
      show();
      drawMultiples();
    });
  }
  if (pairs.length) {
    element("pairs-words").hidden = false;
    element("pairs-words").textContent =
      "What two features add together, beside what each adds by itself: at the values on the axes, between which it " +
      "changes evenly. The darker a cell the more it adds (+) or takes off (−).";
  }
  show();
  drawMultiples();
}

function curvesLegend(columns, rowsHere) {
  const entries = [];
  const own = Object.keys(columns.find((c) => c.knots)?.personal ?? {}).length;
  if (own) entries.push({ shape: "line", tone: "sky", label: `What a number adds by ${own === 1 ? "the client’s own model" : `the own models of ${own} clients`}` });
  if (columns.some((c) => c.knots)) entries.push({ shape: "line", tone: "blue", label: own ? "By the shared model (dashed)" : "What a number adds" });
  if (columns.some((c) => c.knots?.length > 2))
    entries.push({ shape: "circle", tone: "blue", label: "Where the curve may bend" });
  const band = columns.find((c) => c.band)?.band;
  if (band)
    entries.push({ shape: "bar", tone: "band", label: `${percent(band.share)} band of ${own ? "the shared curve" : "the curve"}: holds on average over it` });
  if (columns.some((c) => c.levels)) entries.push({ shape: "bar", tone: "blue", label: "What a level adds" });
  if (rowsHere && columns.some((c) => c.knots))
    entries.push({ shape: "bar", tone: "grey", label: "Below: where the middle half and four fifths of a client's rows lie" });
  return entries;
}

const drawn = new Map(); // by plot: what draws it

/** One figure; it is drawn once it stands on the page, at the width that it has there. */
function multiple(column, at, label) {
  const plot = make("div", { class: "plot" });
  const values = column.values.map((v) => ofClass(v, at));
  const low = Math.min(...values);
  const high = Math.max(...values);
  const caption = `${column.name}${label === null ? "" : `, ${label}`}: from ${number(low)} to ${number(high)}.`;
  drawn.set(plot, () => {
    const width = onPaper ? 390 : Math.max(plot.clientWidth, 220);
    const svg = column.levels ? levelsChart(width, column, values) : curveChart(width, column, values, at);
    build(svg, { role: "group", "aria-label": `Picture. ${caption}` }, []);
    walkWithArrows(svg);
    plot.replaceChildren(svg);
  });
  return make("figure", {}, make("h3", {}, column.name), plot);
}

function drawMultiples() {
  for (const [plot, redraw] of drawn) {
    if (!plot.isConnected) drawn.delete(plot);
    else if (redraws.has(plot)) redraws.get(plot)();
    else {
      redraws.set(plot, redraw);
      redraw();
      watchWidth(plot);
    }
  }
}

/** A table of what a pair of features adds, shaded by its size: numbers and signs say all that shades do. */
function ofPair(pair, at, label) {
  const plot = make("div", { class: "plot" });
  const values = pair.values.map((row) => row.map((v) => ofClass(v, at)));
  const title = `${pair.names.join(" and ")}${label === null ? "" : `, ${label}`}`;
  const all = values.flat();
  const caption = `${title}: from ${number(Math.min(...all))} to ${number(Math.max(...all))}.`;
  drawn.set(plot, () => {
    const svg = pairChart(onPaper ? 390 : Math.max(plot.clientWidth, 220), pair, values);
    build(svg, { role: "group", "aria-label": `Picture. ${caption}` }, []);
    walkWithArrows(svg);
    plot.replaceChildren(svg);
  });
  return make("figure", {}, make("h3", {}, title), plot);
}

function pairChart(width, pair, values) {
  const [across, upwards] = pair.knots;
  const left = 12 + Math.max(...upwards.map((k) => widthOf(number(k))), widthOf(fitted(pair.names[1], 90)));
  const [top, high] = [22, 26];
  const each = (width - left - 6) / across.length;
  const bottom = top + upwards.length * high;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${bottom + 40}`, class: "chart" });
  const largest = Math.max(...values.flat().map(Math.abs)) || 1;
  svg.append(draw("text", { x: 0, y: 14, class: "tick" }, fitted(pair.names[1], left + 60)));
  upwards.forEach((k, row) => {
    const y = bottom - (row + 1) * high;
    svg.append(draw("text", { x: left - 6, y: y + high / 2 + 4, "text-anchor": "end", class: "tick" }, number(k)));
    across.forEach((v, column) => {
      const value = values[column][row];
      const size = { x: left + column * each, y, width: each - 1, height: high - 1 };
      const shade = { class: "bar blue", "fill-opacity": (0.04 + 0.4 * Math.abs(value / largest)).toFixed(3) };
      const words = [`${pair.names[0]} = ${number(v)}, ${pair.names[1]} = ${number(k)}`, added(value)];
      const sign = Math.abs(value) < 0.005 * largest ? "0" : `${value > 0 ? "+" : "−"}${brief(Math.abs(value))}`;
      const place = { x: left + (column + 0.5) * each, y: y + high / 2 + 4, "text-anchor": "middle", class: "tick" };
      svg.append(mark(draw("rect", { ...size, ...shade }), words));
      if (widthOf(sign) < each) svg.append(draw("text", { ...place, "pointer-events": "none" }, sign));
    });
  });
  across.forEach((k, column) => {
    const x = left + (column + 0.5) * each;
    if (widthOf(number(k)) < each || column % 2 === 0)
      svg.append(draw("text", { x, y: bottom + 16, "text-anchor": "middle", class: "tick" }, number(k)));
  });
  svg.append(draw("text", { x: width - 6, y: bottom + 34, "text-anchor": "end", class: "tick" }, pair.names[0]));
  return svg;
}

/** A size in two digits. */
const brief = (value) => (value >= 10 ? value.toFixed(0) : String(Number(value.toPrecision(2))));

/** The upright axis that all pictures share. */
function addedScale(from, to) {
  const all = report.curves.columns.flatMap((c) => [...c.values.flat(), ...Object.values(c.personal ?? {}).flat(2), ...(c.band?.ends ?? []).flat()]);
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  const room = 0.06 * (high - low) || 1;
  return linearScale(low - room, high + room, from, to, 40);
}

const added = (value) => `${value > 0 ? "+" : ""}${number(value)}${report.task === "regression" ? ` ${measure}` : ""}`;

function frame(width, height, bottom) {
  const y = addedScale(bottom, 8);
  const left = 12 + Math.max(...y.ticks.map((t) => widthOf(number(t))));
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart" });
  for (const t of y.ticks) {
    const tone = t === 0 ? "line ink thin" : "grid";
    svg.append(
      draw("line", { x1: left, x2: width - 6, y1: y(t), y2: y(t), class: tone }),
      draw("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "tick" }, number(t)),
    );
  }
  return { svg, y, left };
}

function curveChart(width, column, values, at) {
  const strips = rowStrips(column);
  const bottom = 170;
  const below = bottom + 26;
  const height = below + (strips.length ? 8 + strips.length * STRIP : 0);
  const { svg, y, left } = frame(width, height, bottom);
  const { knots } = column;
  const [low, high] = [knots[0], knots.at(-1)];
  const apart = 22 + Math.max(widthOf(number(low)), widthOf(number(high)));
  // The clients' names stand in a column of their own, behind the strips.
  const names = strips.length ? 8 + Math.min(MOST_NAME, Math.max(...strips.map((s) => widthOf(s.name)))) : 0;
  const right = width - 12 - names;
  const x = linearScale(low, high > low ? high : low + 1, left + 8, right, apart);
  svg.append(
    ...x.ticks.map((t) => draw("text", { x: x(t), y: bottom + 18, "text-anchor": "middle", class: "tick" }, number(t))),
  );
  const path = knots.map((k, i) => `${x(k)},${y(values[i])}`).join(" ");
  svg.append(reader(svg, x, y, column, values, left, width, bottom));
  // What is used: each client's own, where it has one; the shared model is for the others, and for new ones.
  const own = Object.entries(column.personal ?? {});
  for (const [name, all] of own) {
    const points = knots.map((k, i) => `${x(k)},${y(ofClass(all[i], at))}`).join(" ");
    svg.append(draw("polyline", { points, class: "line sky thin own", "pointer-events": "none", "data-client": name }));
  }
  if (column.band) {
    const [lower, upper] = column.band.ends;
    const around = [...knots.map((k, i) => [k, lower[i]]), ...knots.map((k, i) => [k, upper[i]]).reverse()];
    const points = around.map(([k, value]) => `${x(k)},${y(value)}`).join(" ");
    svg.append(draw("polygon", { points, class: "band", "pointer-events": "none" }));
  }
  const shared = own.length ? "line blue dashed" : "line blue";
  svg.append(draw("polyline", { points: path, class: shared, "pointer-events": "none" }));
  knots.forEach((knot, i) => {
    const end = i === 0 || i === knots.length - 1;
    const words = [column.name, `At ${number(knot)}: ${added(values[i])}`, end ? "An end of what is drawn" : "It may bend here"];
    svg.append(mark(symbol("circle", x(knot), y(values[i]), end ? "grey" : "blue"), words));
  });
  strips.forEach((strip, i) => svg.append(...stripMarks(strip, x, below + 10 + i * STRIP, right + 8, column)));
  return svg;
}

/** Under the pointer, the value of the curve there. */
function reader(svg, x, y, column, values, left, width, bottom) {
  const { knots } = column;
  const line = draw("line", { y1: 6, y2: bottom, class: "reader hidden" });
  const area = draw("rect", { x: left, y: 4, width: width - left - 6, height: bottom - 4, class: "catch" });
  area.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const share = (at - x(knots[0])) / (x(knots.at(-1)) - x(knots[0]));
    const value = knots[0] + Math.min(1, Math.max(0, share)) * (knots.at(-1) - knots[0]);
    line.classList.remove("hidden");
    build(line, { x1: x(value), x2: x(value) }, []);
    showTooltip(line, [column.name, `At ${number(value)}: ${added(valueAt(knots, values, value))}`]);
  });
  area.addEventListener("pointerleave", () => {
    line.classList.add("hidden");
    hideTooltip();
  });
  return draw("g", {}, line, area);
}

/** The curve at a value between its ends. */
function valueAt(knots, values, at) {
  const i = Math.max(1, knots.findIndex((k) => k >= at));
  const width = knots[i] - knots[i - 1];
  const share = width > 0 ? (at - knots[i - 1]) / width : 0;
  return values[i - 1] + share * (values[i] - values[i - 1]);
}

/** The clients that count most, as far as there is room. */
function rowStrips(column) {
  if (!column.rows || onPaper) return [];
  const byWeight = [...clients].sort((a, b) => b.weight - a.weight || b.share - a.share);
  const known = byWeight.filter((c) => column.rows[c.name]); // few rows are not described
  return known.slice(0, MOST_STRIPS).map((c) => ({ name: c.name, at: column.rows[c.name] }));
}

function stripMarks({ name, at }, x, y, besides, column) {
  const [least, low, middle, high, most] = at;
  const line = (a, b, kind) => draw("line", { x1: x(a), x2: Math.max(x(b), x(a) + 1), y1: y, y2: y, class: `lies ${kind}` });
  const tick = draw("line", { x1: x(middle), x2: x(middle), y1: y - 4, y2: y + 4, class: "lies middle" });
  const words = [
    `${name}: ${column.name}`,
    `Half of its rows lie between ${number(low)} and ${number(high)}, four fifths between ${number(least)} and ${number(most)}`,
    `Median ${number(middle)}`,
  ];
  const area = draw("rect", { x: x(least), y: y - 5, width: Math.max(x(most) - x(least), 2), height: 10, class: "catch" });
  const strip = mark(draw("g", {}, area, line(least, most, ""), line(low, high, "most"), tick), words);
  return [draw("text", { x: besides, y: y + 4.5, class: "aside" }, fitted(name, MOST_NAME)), strip];
}

function levelsChart(width, column, values) {
  const bottom = 170;
  const { svg, y, left } = frame(width, bottom + 26, bottom);
  const each = (width - left - 14) / column.levels.length;
  column.levels.forEach((level, i) => {
    const [top, base] = [y(Math.max(values[i], 0)), y(Math.min(values[i], 0))];
    const x = left + 4 + (i + 0.5) * each;
    const wide = Math.min(0.7 * each, 46);
    const words = [`${column.name} = ${level}`, added(values[i])];
    if (column.shares) words.push(`${percent(column.shares[i])} of all rows`);
    const size = { x: x - wide / 2, y: top, width: wide, height: Math.max(base - top, 1.5) };
    svg.append(mark(draw("rect", { ...size, class: "bar blue" }), words));
    const room = each - 4;
    if (room > 16)
      svg.append(draw("text", { x, y: bottom + 18, "text-anchor": "middle", class: "tick" }, fitted(level, room)));
  });
  return svg;
}
