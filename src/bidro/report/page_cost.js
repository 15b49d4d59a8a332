// What robustness costs and brings: the frontier.

const calibrated = report.calibration;
const hasPooled = isKnown(calibrated?.pooled);
// Whether losses on held-out rows are known under pooled training too.
const comparable = report.held_out_rows > 0 && clients.every((c) => isKnown(c.pooled));

// ---- the models that could be had

/** The handle along the frontier: what the model of each largest cost comes to, and how it is taken. */
function offeredModels() {
  const offered = report.frontier?.models ?? [];
  element("choose").hidden = offered.length < 2;
  if (offered.length < 2) return;
  const slider = element("largest-cost");
  slider.max = offered.length - 1;
  const mine = calibrated.max_cost ?? Infinity;
  slider.value = offered.findLastIndex((one) => (one.max_cost ?? Infinity) <= mine);
  const value = (v) => (report.frontier.right ? tenths(v) : `${threeDigits(v)}${counted}`);
  const both = ([all, worst]) =>
    `${value(all)} over all rows and ${value(worst)} for the ${clients.length > 10 ? "worst tenth of the clients" : "worst client"}`;
  const measured = report.frontier.right ? "is right in" : "is typically off by";
  function show() {
    const one = offered[Number(slider.value)];
    const cost = isKnown(one.max_cost) ? `${threeDigits(100 * one.max_cost)}%` : "no limit";
    element("largest-cost-is").textContent = cost;
    slider.setAttribute("aria-valuetext", cost);
    const said = [];
    if (one.shared) said.push(`The shared model ${measured} ${both(one.shared)}.`);
    if (one.personal) said.push(`With each client’s own model: ${both(one.personal)}.`);
    if (one.promise) said.push(one.promise);
    element("choose-words").textContent = said.join(" ");
    const option = isKnown(one.max_cost) ? `--max-cost ${one.max_cost}` : "--prefer worst";
    element("choose-note").replaceChildren(
      "To have it, without training again: ",
      make("code", {}, `bidro choose MODEL ${option}`),
      offered.every((one) => one.promise) ? `. What is promised of these ${offered.length} models holds for all of them at once with ${percent(report.frontier.confidence)} confidence, whichever you take.` : ".",
    );
  }
  slider.addEventListener("input", show);
  show();
}

// ---- the frontier

const MARKED = {
  pooled: { label: "Pooled training", shape: "square", tone: "orange" },
  afl: { label: "Any mixture (AFL)", short: "AFL", shape: "up", tone: "vermilion" },
  chosen: { label: "Chosen", shape: "diamond", tone: "blue" },
  personal: { label: "With personal models", short: "Personal", shape: "down", tone: "sky" },
};

function candidateName(k) {
  const { scale, max_weight_ratio: ratio, mixing } = calibrated.candidates[k];
  const radius = calibrated.candidates.some((c) => c.scale !== scale) ? `, radius scale ${number(scale)}` : "";
  if (k === calibrated.pooled) return `Pooled training${radius}`;
  if (k === calibrated.afl) return `Any mixture (AFL)${radius}`;
  const cut = ratio === null ? "to any clients" : `at most ${number(ratio)} times each share`;
  return `${mixing < 1 ? percent(mixing) : "All"} of the weight may move, ${cut}${radius}`;
}

function frontier() {
  const said = [report.chosen?.robustness_cost, report.chosen?.personal].filter(Boolean);
  element("cost-words").textContent = said.join(" ");
  element("cost-words").hidden = said.length === 0;
  element("chosen-words").textContent = [report.chosen?.taken, report.chosen?.weights, report.chosen?.radius].filter(Boolean).join(" ");
  offeredModels();
  if (!hasPooled || calibrated.candidates.length < 2) {
    const reason = calibrated ? why(hasPooled ? "frontier" : "pooled") : why("calibration");
    return absentFigure("frontier-figure", `There is no picture: ${reason}`);
  }
  const before = calibrated.candidates[calibrated.pooled];
  const against = (c) => ({ x: c.mean / before.mean - 1, y: c.worst_decile / before.worst_decile - 1 });
  const points = calibrated.candidates.map((c, k) => ({ ...against(c), k, name: candidateName(k) }));
  const marked = Object.keys(MARKED)
    .filter((role) => (role === "personal" ? calibrated.personal : isKnown(calibrated[role])))
    .map((role) => {
      const place = role === "personal" ? against(calibrated.personal) : points[calibrated[role]];
      return { ...MARKED[role], ...place, role };
    });
  const far = [...points, ...marked].some((p) => Math.abs(p.x) > farthest(points));
  const caption =
    "What each choice would cost on average (left is better) and do for the worst tenth of the clients (lower is " +
    "better), against pooled training, on rows left out. No other is better in both than those on the line. " +
    (isKnown(calibrated.max_cost) ? `Shaded: at most ${percent(calibrated.max_cost)}. ` : "") +
    (far ? "What is far off stands at the edge, with its numbers. " : "") +
    "All numbers are in the table “What was tried”.";
  const others = points.some((p) => !marked.some((m) => m.k === p.k));
  const legend = [...marked, ...(others ? [{ shape: "circle", tone: "grey", label: "Other candidates" }] : [])];
  figure("frontier-figure", caption, (width) => frontierChart(width, points, marked), legend);
}

/** Costs beyond this would push all that can be chosen into a corner. */
function farthest(points) {
  if (!isKnown(calibrated.max_cost)) return Infinity;
  return Math.max(12 * calibrated.max_cost, 1.5 * Math.abs(points[calibrated.chosen].x), 0.02);
}

function frontierChart(width, points, marked) {
  const all = [...points, ...marked];
  const reach = farthest(points);
  const near = all.filter((p) => Math.abs(p.x) <= reach);
  const most = isKnown(calibrated.max_cost) ? calibrated.max_cost : 0;
  const [xs, ys] = [near.map((p) => p.x), near.map((p) => p.y)];
  const height = onPaper ? 250 : width < NARROW ? 300 : 330;
  const [top, bottom] = [30, height - 48];
  const y = linearScale(...padded(Math.min(0, ...ys), Math.max(0, ...ys)), bottom, top, 45);
  const left = 14 + Math.max(...y.ticks.map((t) => widthOf(signed(t))));
  const right = width - 14;
  const x = linearScale(...padded(Math.min(0, ...xs), Math.max(1.2 * most, ...xs)), left, right, 70);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart" });
  svg.append(...frontierAxes(x, y, left, right, top, bottom, width));
  if (most > 0) svg.append(...costBand(x, most, left, top, bottom));
  svg.append(frontierLine(points, x, y));
  const others = points.filter((p) => !marked.some((m) => m.k === p.k));
  for (const p of others) svg.append(frontierMark(p, "circle", "grey", x, y, p.name));
  for (const p of marked) svg.append(frontierMark(p, p.shape, p.tone, x, y, p.label, p.role === "chosen"));
  const around = (p, size) => {
    const [across, up] = [x(p.x), y(p.y)];
    return { left: across - size, right: across + size, top: up - size, bottom: up + size };
  };
  const taken = marked.map((p) => around(p, 9));
  const better = others.map((p) => around(p, 5));
  const room = { left: left + 2, right: width - 2, top, bottom: bottom - 2 };
  for (const [words, p] of labelled(marked)) {
    const numbers = Math.abs(p.x) > reach ? `: ${signed(p.x)}, ${signed(p.y)}` : "";
    const place = (said) => placedLabel(said + numbers, x(p.x), y(p.y), taken, better, room);
    // The legend has what finds no place.
    const label = place(words) ?? (p.short ? place(p.short) : null);
    if (label) svg.append(label);
  }
  return svg;
}

function padded(low, high) {
  const room = 0.12 * (high - low) || 0.01;
  return [low - room, high + room];
}

function frontierAxes(x, y, left, right, top, bottom, width) {
  const across = y.ticks.flatMap((t) => [
    draw("line", { x1: left, x2: right, y1: y(t), y2: y(t), class: "grid" }),
    draw("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "tick" }, signed(t)),
  ]);
  const down = x.ticks.flatMap((t) => [
    draw("line", { x1: x(t), x2: x(t), y1: top, y2: bottom, class: "grid" }),
    draw("text", { x: x(t), y: bottom + 18, "text-anchor": "middle", class: "tick" }, signed(t)),
  ]);
  const cost = "Change of the mean loss";
  const middle = { x: (left + right) / 2, y: bottom + 40, "text-anchor": "middle", class: "axis" };
  const gain = fitted("Change of the worst tenth's loss", width - 8);
  return [...across, ...down, draw("text", middle, cost), draw("text", { x: 2, y: 13, class: "axis" }, gain)];
}

function costBand(x, most, left, top, bottom) {
  const band = draw("rect", { x: left, y: top, width: x(most) - left, height: bottom - top, class: "band" });
  const line = draw("line", { x1: x(most), x2: x(most), y1: top, y2: bottom, class: "line ink dashed" });
  return [band, mark(line, ["The largest cost", `The mean may rise by at most ${percent(most)}`])];
}

/** Through the candidates for which no other costs less on average and serves the worst tenth as well. */
function frontierLine(points, x, y) {
  const along = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const best = along.filter((p, k) => along.slice(0, k).every((q) => q.y > p.y));
  return draw("polyline", { points: best.map((p) => `${x(p.x)},${y(p.y)}`).join(" "), class: "line thin grey" });
}

function frontierMark(p, shape, tone, x, y, name, ringed = false) {
  const group = draw("g");
  if (ringed) group.append(draw("circle", { cx: x(p.x), cy: y(p.y), r: 10, class: "ring" }));
  group.append(symbol(shape, x(p.x), y(p.y), tone));
  const lines = [name, `Mean ${signed(p.x)}`, `Worst tenth ${signed(p.y)}`];
  return mark(group, name === p.name || !p.name ? lines : [`${name}: ${p.name}`, ...lines.slice(1)]);
}

/** [words, point]: roles that share a candidate share a label. */
function labelled(marked) {
  const groups = new Map();
  for (const p of marked) {
    const key = p.role === "personal" ? "personal" : p.k;
    groups.set(key, [...(groups.get(key) ?? []), p]);
  }
  return [...groups.values()].map((same) => {
    const chosen = same.find((p) => p.role === "chosen");
    const others = same.filter((p) => p.role !== "chosen").map((p) => p.label);
    const words = chosen && others.length ? `Chosen: ${others.join(", ")}` : same[0].label;
    return [words, same[0]];
  });
}

/** Words beside a mark, at the first place where they hide nothing, or no mark of another that has words. */
function placedLabel(words, x, y, taken, better, room) {
  const wide = 1.15 * widthOf(words); // it is bold
  const places = [
    [x + 14, y + 4],
    [x - 14 - wide, y + 4],
    ...[-18, 26, -34, 42, -50, 58, -66, 74].flatMap((dy) => [
      [x - wide / 2, y + dy],
      [x + 6, y + dy],
      [x - 6 - wide, y + dy],
      [room.left + 1, y + dy],
      [room.right - 1 - wide, y + dy],
    ]),
  ];
  const box = ([left, base]) => ({ left, right: left + wide, top: base - 13, bottom: base + 4 });
  const free = (others) => (place) => {
    const b = box(place);
    if (b.left > x + 40 || b.right < x - 40) return false; // it would seem another mark's
    const inside = b.left >= room.left && b.right <= room.right && b.top >= room.top && b.bottom <= room.bottom;
    const apart = (t) => b.right < t.left || t.right < b.left || b.bottom < t.top || t.bottom < b.top;
    return inside && others.every(apart);
  };
  const at = places.find(free([...taken, ...better])) ?? places.find(free(taken));
  if (!at) return null;
  taken.push(box(at));
  return draw("text", { x: at[0], y: at[1], class: "tagged" }, words);
}
