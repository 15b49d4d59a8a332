// The sections of the page, in their order; what they are drawn with is in page_parts.js.

const byLoss = (client) => client.loss ?? client.training_loss ?? 0;
const judged = clients.some((c) => isKnown(c.loss));

// ---- what was trained

function about() {
  const few = report.classes ? ` (${listed(report.classes)})` : "";
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  const words = [
    `This is a ${report.task} model. It predicts ${report.target}${few} from ${plural(report.features.length, "feature")}.`,
    `It was trained on ${plural(report.rows, "row")} of ${plural(clients.length, "client")};`,
    `the column ${report.client_column} says which client a row is from.`,
    `Its loss is the ${report.loss.name}${inUnits}: lower is better.`,
    ...howItDoes(),
  ];
  if (clients.some((c) => c.radius > 0)) {
    words.push("Training guarded against a change in the mixture of clients and, at the same time, against shift inside each client.");
  } else {
    words.push("Training guarded against a change in the mixture of clients, but not against shift inside a client.");
  }
  words.push("This page holds summaries of each client, and no rows.");
  element("about").textContent = words.join(" ");
  facts();
  element("dated").textContent = `${longDate(report.created)}, bidro ${report.version}`;
}

const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

function howItDoes() {
  const overall = report.overall;
  if (!overall) return [];
  const worst = [...clients].sort((a, b) => byLoss(b) - byLoss(a))[0];
  const where = judged
    ? [`A further ${plural(report.held_out_rows, "row")} were kept out of training.`, "On those,"]
    : [`How it does on rows that training never saw is not known: ${why("held_out")}`, "On the rows of training,"];
  return [
    ...where,
    `the mean loss is ${loss(overall.mean)}; that of the worst client, ${worst.name}, is ${loss(overall.worst_client)};`,
    `and that of the worst tenth of the clients is ${loss(overall.worst_decile)}.`,
  ];
}

function facts() {
  const on = judged ? "kept out" : "of training";
  const all = [
    ["Clients", count(clients.length)],
    ["Rows trained on", count(report.rows)],
    ["Rows kept out", count(report.held_out_rows)],
    [`Mean loss, rows ${on}`, loss(report.overall?.mean)],
    ["Worst client", loss(report.overall?.worst_client)],
    ["Worst tenth of clients", loss(report.overall?.worst_decile)],
  ];
  element("facts").replaceChildren(...all.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function longDate(text) {
  const date = new Date(text);
  if (Number.isNaN(date.valueOf())) return text;
  return new Intl.DateTimeFormat("en-GB", { dateStyle: "long", timeZone: "UTC" }).format(date);
}

// ---- the certificate

const STATEMENTS = {
  interval: { title: "Interval", tone: "blue" },
  held_out: { title: "Held-out bound", tone: "green", id: "held-out-bound" },
  clipped: { title: "Held-out bound, losses clipped", tone: "orange", id: "clipped-bound" },
  mistakes: { title: "Share of mistakes", tone: "purple", id: "mistakes-bound" },
  shift: { title: "Clipped, with room for shift", tone: "vermilion", id: "shift-bound" },
};

const levelWords = () => (isKnown(here().confidence) ? percent(here().confidence) : "no stated confidence");
const valued = (id, value, text) => make("span", { id, class: "value", "data-value": value }, text);

function certificate() {
  const names = Object.keys(STATEMENTS).filter(
    (name) => name !== "mistakes" || report.task === "classification" || inSomeLevel(name),
  );
  confidenceControl();
  followers.push(() => {
    element("level").textContent = levelWords();
    element("confidence").setAttribute("aria-valuetext", `${levelWords()} confidence`);
    element("statement").textContent = statement();
    element("statements").replaceChildren(...names.map(card));
  });
  certificateFigure();
}

function confidenceControl() {
  const slider = element("confidence");
  slider.max = Math.max(levels.length - 1, 0);
  slider.value = chosen;
  slider.disabled = levels.length < 2;
  element("control").hidden = levels.length === 0;
  element("ticks").replaceChildren(...levels.map((l) => make("span", {}, percent(l.confidence))));
  slider.addEventListener("input", () => {
    chosen = Number(slider.value);
    followers.forEach((follow) => follow());
  });
}

function statement() {
  const { interval, held_out: held, clipped, mistakes, shift } = here();
  const parts = [];
  if (interval) parts.push(intervalWords(interval));
  if (held) parts.push(`judged by rows kept out, it is at most ${loss(held.bound)}`);
  if (clipped) parts.push(`with each loss counted as at most ${loss(clipped.largest)}, it is at most ${loss(clipped.bound)}`);
  if (mistakes) parts.push(`at most ${percent(mistakes.bound)} of predictions are wrong`);
  if (shift) parts.push(`with room for a shift of ${number(shift.radius)} inside each client, the clipped mean is at most ${loss(shift.bound)}`);
  if (parts.length === 0) return "No statement can be made about new rows. The reasons are below.";
  const lead = interval || !(held || clipped) ? "" : "of the true mean loss: ";
  return `At a confidence of ${levelWords()}, for ${report.mixtures}: ${lead}${parts.join("; ")}.`;
}

function intervalWords({ lower, upper }) {
  const from = isKnown(lower) ? `between ${number(lower)} and ${loss(upper)}` : `at or below ${loss(upper)}`;
  return `the true mean loss lies ${from}`;
}

function card(name) {
  const { title, tone, id } = STATEMENTS[name];
  const found = here()[name];
  const head = make("h3", { class: tone }, title);
  if (!found) return make("article", {}, head, make("p", { class: "absent" }, `Not stated: ${why(name)}`));
  const promise = here().promises?.[name];
  const figures = name === "interval" ? intervalFigures(found) : boundFigures(name, id, found);
  return make("article", {}, head, figures, ...(promise ? [make("p", {}, promise)] : []), ...extra(name, found));
}

const withUnit = (text) => (unit ? make("span", { class: "unit" }, `${text}${unit}`) : text);

function intervalFigures({ lower, upper }) {
  const low = isKnown(lower) ? number(lower) : "no lower end";
  return make("p", { class: "figures" }, valued("interval-lower", lower, low), " to ", valued("interval-upper", upper, number(upper)), withUnit(""));
}

function boundFigures(name, id, { bound }) {
  const text = name === "mistakes" ? percent(bound) : number(bound);
  return make("p", { class: "figures" }, "at most ", valued(id, bound, text), name === "mistakes" ? "" : withUnit(""));
}

function extra(name, found) {
  if (name !== "interval" || !isKnown(found.sampling)) return [];
  const words = `Of its width, ${number(found.sampling)} comes from sampling and ${number(found.heterogeneity)} from differences between clients.`;
  return [make("p", {}, words)];
}

function certificateFigure() {
  const names = ["interval", "held_out", "clipped", "shift"].filter(inSomeLevel);
  if (names.length === 0) return absentFigure("certificate-figure", "There is no picture, because no statement about the mean loss could be made.");
  const lines = [
    { value: report.overall?.mean, tone: "ink dashed", label: "mean over all clients" },
    { value: report.overall?.worst_client, tone: "ink", label: "worst client" },
  ].filter((line) => isKnown(line.value));
  const source = judged ? "observed on rows kept out" : "observed in training";
  const ends = levels.flatMap((l) => names.map((n) => l[n]?.upper ?? l[n]?.bound));
  const scale = lossScale([...ends, ...lines.map((l) => l.value)]);
  const caption = `Where the true mean loss lies at the chosen confidence. A bar that starts at the left edge is an upper bound only, or reaches below the axis. Lines: the loss ${source}.`;
  const redraw = figure("certificate-figure", caption, (width) => rowsChart(width, names.filter((n) => here()[n]).map(statementRow), {
    scale,
    label: lossLabel,
    height: 22,
    above: true,
    lines: lines.map((l) => ({ ...l, words: [sentence(l.label), `${loss(l.value)}, ${source}`] })),
  }), lines.map((l) => ({ shape: "line", tone: l.tone, label: sentence(`${l.label}, ${source}`) })));
  followers.push(redraw);
}

function statementRow(name) {
  const { title, tone } = STATEMENTS[name];
  const found = here()[name];
  const low = isKnown(found.lower) ? found.lower : -Infinity;
  const high = found.upper ?? found.bound;
  const note = isKnown(found.lower) ? `${number(found.lower)} to ${number(high)}` : `at most ${number(high)}`;
  return {
    name: title,
    note,
    marks: (x, y) => [bar(x, low, high, y, 16, tone, [title, note + unit, `confidence ${levelWords()}`])],
  };
}

// ---- the clients

const atLevel = (part, field) => (client) => here()[part]?.[field]?.[clients.indexOf(client)] ?? null;

function clientsTable() {
  const inTraining = "In training";
  const columns = [
    { label: "Name", group: "Client", words: true, value: (c) => c.name, after: bindingTag, data: (c) => ({ "data-client": c.name }) },
    { label: "Rows", group: "Client", value: (c) => c.rows, format: () => count },
    ...(judged ? heldOutColumns("On rows kept out") : []),
    { label: "Loss", group: inTraining, value: (c) => c.training_loss },
    { label: "Radius", group: inTraining, value: (c) => c.radius },
    { label: "Robust risk", group: inTraining, value: (c) => c.robust },
    { label: "Share of rows", group: inTraining, value: (c) => c.share, format: percentFormat },
    { label: "Weight", group: inTraining, value: (c) => c.weight, format: percentFormat, classes: "weight" },
    ...certificateColumns("At the chosen confidence"),
  ];
  const byRisk = columns.findIndex((c) => c.classes === "loss" || (!judged && c.label === "Loss"));
  const table = element("clients");
  const fill = sortableTable(table, "clients-caption", "", columns, clients, { column: byRisk, up: false });
  followers.push(() => {
    table.caption.textContent = clientsCaption();
    fill();
  });
  clientsWords();
}

const bindingTag = (client) => (client.binding ? [" ", make("span", { class: "tag" }, "binds")] : []);

function heldOutColumns(group) {
  const plusMinus = (c, text) => (isKnown(c.se) ? ` ± ${text(c.se)}` : "");
  return [
    { label: "Rows", group, value: (c) => c.held_out_rows, format: () => count },
    { label: "Loss ± error", group, value: (c) => c.loss, tail: plusMinus, classes: "loss" },
  ];
}

function certificateColumns(group) {
  const all = [
    ["held_out", "clients", "Held-out bound", "held-out"],
    ["clipped", "clients", "Clipped bound", "clipped"],
    ["mistakes", "clients", "Mistakes at most", "mistakes"],
    ["interval", "radii", "Radius", "radius"],
    ["interval", "risks", "Robust risk", "robust"],
  ];
  return all
    .filter(([part, field]) => levels.some((l) => l[part]?.[field]))
    .map(([part, field, label, classes]) => ({
      label, group, classes, value: atLevel(part, field), format: part === "mistakes" ? percentFormat : undefined,
    }));
}

function clientsCaption() {
  const inUnits = report.loss.unit ? ` Losses, risks and bounds are in ${report.loss.unit}.` : "";
  const level = levels.length ? ` The chosen confidence is ${levelWords()}.` : "";
  return `Each client.${inUnits}${level} Press a heading to sort by it.`;
}

function clientsWords() {
  const words = judged
    ? "The loss on rows kept out is what to expect of new rows like those. The loss in training is for comparison: it is usually a little lower."
    : "Only losses on the rows of training are known, and these flatter a model.";
  element("clients-words").textContent = words;
  const missing = [];
  if (!judged) missing.push(`The loss on rows kept out is absent: ${why("held_out")}`);
  if (!inSomeLevel("interval")) missing.push(`Radius and robust risk at a chosen confidence are absent: ${why("interval")}`);
  element("clients-absent").textContent = missing.join(" ");
  element("clients-absent").hidden = missing.length === 0;
}

// ---- the clients side by side

const SERIES = [
  { label: "Loss in training", shape: "circle", tone: "grey", dy: -6, value: (c) => c.training_loss },
  { label: "Loss on rows kept out, ± one standard error", short: "Loss on rows kept out", shape: "square", tone: "sky", dy: 6, value: (c) => c.loss, spread: (c) => c.se },
  { label: "Held-out bound", shape: "up", tone: "green", dy: 6, value: atLevel("held_out", "clients"), every: ["held_out", "clients"] },
  { label: "Clipped bound", shape: "down", tone: "orange", dy: 6, value: atLevel("clipped", "clients"), every: ["clipped", "clients"] },
  { label: "Robust risk at the chosen confidence", short: "Robust risk", shape: "diamond", tone: "blue", dy: -6, value: atLevel("interval", "risks"), every: ["interval", "risks"] },
];

/** At every level, so that the axis stays where it is when the level changes. */
const allValues = ({ value, every, spread }) =>
  every
    ? levels.flatMap((l) => l[every[0]]?.[every[1]] ?? [])
    : clients.flatMap((c) => [value(c), isKnown(spread?.(c)) ? value(c) + spread(c) : null]);

function dots() {
  const series = SERIES.filter((s) => known(allValues(s)).length);
  const shown = [...clients].sort((a, b) => byLoss(b) - byLoss(a)).slice(0, MOST_ROWS);
  const scale = lossScale(series.flatMap(allValues));
  const by = judged ? "loss on rows kept out" : "loss in training";
  const which = shown.length < clients.length
    ? `The ${shown.length} clients with the highest ${by}, of ${count(clients.length)}; the table above has all.`
    : `All clients, the highest ${by} first.`;
  const words = `${which} Bounds and robust risks are at the chosen confidence. Point at a mark to read it, or use Tab and the arrow keys.`;
  const redraw = figure("dots-figure", words, (width) => rowsChart(width, shown.map((c) => dotRow(c, series)), {
    scale,
    label: lossLabel,
    height: 28,
  }), series);
  followers.push(redraw);
}

function dotRow(client, series) {
  const here = series.filter((s) => isKnown(s.value(client)));
  return {
    name: client.name,
    tag: client.binding ? "(binds)" : "",
    marks: (x, y) => [guide(x, y, x(Infinity)), ...here.flatMap((s) => dot(client, s, x, y + s.dy))],
  };
}

function dot(client, { label, short, shape, tone, value, spread }, x, y) {
  const at = value(client);
  const se = spread?.(client);
  const group = draw("g");
  if (isKnown(se)) group.append(draw("line", { x1: x(at - se), x2: x(at + se), y1: y, y2: y, class: `whisker ${tone}` }));
  group.append(symbol(shape, x(at), y, tone));
  const read = isKnown(se) ? `${number(at)} ± ${number(se)}${unit}` : loss(at);
  return [mark(group, [client.name, `${short ?? label}: ${read}`])];
}

// ---- who binds

function binds() {
  const binding = clients.filter((c) => c.binding).map((c) => c.name);
  const meaning = "A client that binds holds the worst case up: a lower loss there would lower the worst case.";
  const named = binding.length > 8 ? [...binding.slice(0, 8), `${count(binding.length - 8)} more`] : binding;
  const who = binding.length ? ` Here ${listed(named)} ${binding.length === 1 ? "binds" : "bind"}.` : " No client was found to bind.";
  element("binds-words").textContent = meaning + who;
  const shown = [...clients].sort((a, b) => b.weight - a.weight || b.share - a.share).slice(0, MOST_ROWS);
  const rest = clients.filter((c) => !shown.includes(c)).reduce((sum, c) => sum + c.weight, 0);
  const which = shown.length < clients.length
    ? ` The ${shown.length} clients with the largest weights, of ${count(clients.length)}; the others weigh ${percent(rest)} together.`
    : "";
  const most = Math.max(...shown.flatMap((c) => [c.weight, c.share]));
  figure("binds-figure", `The weight of each client in the worst mixture, beside its share of the rows.${which}`, (width) =>
    rowsChart(width, shown.map(weightRow), {
      scale: (from, to) => linearScale(0, 100 * most, from, to),
      label: "Per cent",
      height: 28,
    }), [
    { shape: "bar", tone: "blue", label: "Weight in the worst mixture" },
    { shape: "bar", tone: "grey", label: "Share of the rows" },
  ]);
}

function weightRow(client) {
  const lines = [client.name, `Weight ${percent(client.weight)}`, `Share of rows ${percent(client.share)}`];
  lines.push(`Robust risk in training ${loss(client.robust)}`, `Radius in training ${number(client.radius)}`);
  return {
    name: client.name,
    tag: client.binding ? "(binds)" : "",
    note: `${(100 * client.weight).toFixed(1)}% of ${(100 * client.share).toFixed(1)}%`.replace(" of ", " | "),
    marks: (x, y) => [
      bar(x, 0, 100 * client.weight, y - 5, 9, "blue", lines),
      bar(x, 0, 100 * client.share, y + 5, 7, "grey", lines),
    ],
  };
}

// ---- bars to both sides of zero, for shifts and coefficients

function signedBars(id, caption, label, all, toneOf, extent) {
  const shown = [...all].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, MOST_ROWS);
  const values = extent ?? all.map((row) => row.value);
  let [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  if (low === high) [low, high] = [-1, 1];
  const cut = shown.length < all.length ? ` The ${shown.length} largest of ${count(all.length)}.` : "";
  return figure(id, caption + cut, (width) => rowsChart(width, shown.map((row) => signedRow(row, toneOf(row.value))), {
    scale: (from, to) => linearScale(low, high, from, to),
    label,
    height: 24,
  }));
}

function signedRow({ name, value, note, lines }, tone) {
  const zero = (x, y) => draw("line", { x1: x(0), x2: x(0), y1: y - 12, y2: y + 12, class: "zero" });
  return { name, note, marks: (x, y) => [bar(x, 0, value, y, 13, tone, lines), zero(x, y)] };
}

const signTone = (value) => (value < 0 ? "orange" : "blue");

// ---- the worst case

function worstCase() {
  const cases = (report.worst_case ?? []).filter((c) => c.moved.length);
  if (cases.length === 0) {
    element("worst-choice").hidden = true;
    return absentFigure("worst-figure", `Not shown: ${why("worst_case")}`);
  }
  const select = element("worst-client");
  const weights = new Map(clients.map((c) => [c.name, c.weight]));
  cases.sort((a, b) => (weights.get(b.client) ?? 0) - (weights.get(a.client) ?? 0));
  select.replaceChildren(...cases.map((c, i) => make("option", { value: i }, c.client)));
  const extent = cases.flatMap((c) => c.moved.map((m) => m.in_sd));
  const show = () => shiftBars(cases[Number(select.value)], extent);
  select.addEventListener("change", show);
  show();
}

function shiftBars({ client, moved }, extent) {
  const rows = moved.map((m) => {
    const means = `${number(m.before)} → ${number(m.after)}`;
    return { name: m.name, value: m.in_sd, note: means, lines: [m.name, `Mean ${means}`, `${number(m.in_sd)} standard deviations`] };
  });
  const caption = `${client}: the shift of each feature's mean in the worst case, largest first. On the right, the mean in the data and in the worst case. The axis is the same for all clients.`;
  signedBars("worst-figure", caption, "Shift, in standard deviations", rows, signTone, extent);
}

// ---- convergence

function solver() {
  const { rounds, gap, method, history } = report.solver;
  const close = isKnown(gap)
    ? `It ended with a relative gap of ${number(gap)}: no model of this kind has a worst case lower than this one's by more than that part of it.`
    : "How close it came to the best possible is not certified.";
  element("solver-words").textContent = `Training took ${plural(rounds, "round")} of messages between the server and the clients (method: ${method}). ${close}`;
  const points = (history ?? []).map(([upper, lower], i) => ({ round: i + 1, upper, lower }));
  if (points.length === 0) {
    absentFigure("bounds-figure", `Not shown: ${why("history")}`);
    element("gap-figure").remove();
    return;
  }
  const bound = (label, tone, shape, key) => ({ label, tone, shape, values: points.map((p) => p[key]) });
  const bounds = [bound("Upper bound: the model's worst case", "vermilion", "down", "upper"), bound("Lower bound: of any model", "blue", "up", "lower")];
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  roundsFigure("bounds-figure", `The worst-case loss${inUnits}, between two bounds that close in on the best possible.`, bounds, false);
  const relative = points.map(({ upper, lower }) => (isKnown(upper) && isKnown(lower) ? (upper - lower) / Math.abs(upper) : null));
  const gaps = [{ label: "Relative gap", tone: "green", shape: "diamond", values: relative }];
  roundsFigure("gap-figure", "The gap between the two, relative to the upper bound, on a logarithmic axis.", gaps, true);
}

function roundsFigure(id, caption, series, logarithmic) {
  const drawable = (v) => isKnown(v) && (!logarithmic || v > 0);
  if (!series.some((s) => s.values.some(drawable))) return absentFigure(id, "Not shown: no bound was recorded that can be drawn.");
  figure(id, caption, (width) => roundsChart(width, series, logarithmic, drawable), series);
}

function roundsChart(width, series, logarithmic, drawable) {
  const all = series.flatMap((s) => s.values.filter(drawable));
  const [height, last] = [260, Math.max(2, series[0].values.length)];
  const y = logarithmic
    ? logScale(Math.min(...all) / 2, Math.max(...all) * 2, height - 46, 10)
    : linearScale(...roomAround(Math.min(...all), Math.max(...all)), height - 46, 10);
  const left = 14 + Math.max(...y.ticks.map((t) => widthOf(number(t))));
  const x = linearScale(1, last, left + 10, width - 14);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart" }, ...roundsAxes(x, y, left, width, height));
  for (const s of series) {
    const points = s.values.map((v, i) => ({ v, round: i + 1 })).filter((p) => drawable(p.v));
    const path = points.map((p) => `${x(p.round)},${y(p.v)}`).join(" ");
    svg.append(draw("polyline", { points: path, class: `line ${s.tone}` }));
    svg.append(...points.map((p) => mark(symbol(s.shape, x(p.round), y(p.v), s.tone), [`Round ${p.round}`, `${s.label}: ${number(p.v)}${logarithmic ? "" : unit}`])));
  }
  return svg;
}

function roomAround(low, high) {
  const room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

function roundsAxes(x, y, left, width, height) {
  const bottom = height - 46;
  const across = y.ticks.flatMap((t) => [
    draw("line", { x1: left, x2: width - 6, y1: y(t), y2: y(t), class: "grid" }),
    draw("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "tick" }, number(t)),
  ]);
  const rounds = x.ticks.filter(Number.isInteger);
  const down = rounds.map((t) => draw("text", { x: x(t), y: bottom + 18, "text-anchor": "middle", class: "tick" }, count(t)));
  const label = draw("text", { x: (left + width) / 2, y: bottom + 38, "text-anchor": "middle", class: "axis" }, "Round");
  return [...across, ...down, label];
}

// ---- calibration

function calibration() {
  const found = report.calibration;
  if (!found) {
    element("calibration-scroll").remove();
    element("calibration-words").className = "absent";
    element("calibration-words").textContent = `Not shown: ${why("calibration")}`;
    return;
  }
  const { candidates, folds } = found;
  const choice = candidates[found.chosen];
  element("calibration-words").textContent =
    `Both were chosen together, by cross-validation inside the clients in ${plural(folds, "fold")}, among ${plural(candidates.length, "candidate")}. ` +
    `The choice is a radius scale of ${number(choice.scale)} with ${capWords(choice.cap)}. ` +
    "The score is the loss on the folds left out, over the clients that fare worst; lower is better. " +
    "Such a choice is good on rows like these. It promises nothing about others.";
  const scales = distinct(candidates.map((c) => c.scale));
  const caps = distinct(candidates.map((c) => c.cap));
  const scores = known(candidates.map((c) => c.score));
  const range = [Math.min(...scores), Math.max(...scores)];
  const corner = make("th", { scope: "col" }, "Cap");
  const head = make("tr", {}, corner, ...scales.map((s) => make("th", { scope: "col" }, `Radius scale ${number(s)}`)));
  const lines = caps.map((cap) => make("tr", {}, make("th", { scope: "row" }, cap === null ? "none" : `${number(cap)} ×`),
    ...scales.map((scale) => scoreCell(candidates.find((c) => c.scale === scale && c.cap === cap), choice, range))));
  const caption = make("caption", { id: "calibration-caption" }, "Score of each pair, and below it the loss of the worst tenth of clients. Darker is worse.");
  element("calibration").replaceChildren(caption, make("thead", {}, head), make("tbody", {}, ...lines));
}

const distinct = (values) => [...new Set(values)].sort((a, b) => (a ?? Infinity) - (b ?? Infinity));

function scoreCell(candidate, choice, [least, most]) {
  if (!candidate) return make("td", {}, "–");
  const isChoice = candidate === choice;
  const cell = make("td", { class: isChoice ? "chosen" : "", "data-value": candidate.score }, make("b", {}, number(candidate.score)));
  cell.append(make("small", {}, number(candidate.worst_decile)));
  if (isChoice) cell.append(make("span", { class: "tag" }, "chosen"));
  const depth = most > least ? (candidate.score - least) / (most - least) : 0;
  cell.style.setProperty("--depth", `${(5 + 45 * depth).toFixed(0)}%`);
  return cell;
}

// ---- coefficients

function coefficients() {
  const sum = report.task === "regression" ? "The prediction is" : report.classes ? "The score of a class is" : "The score is";
  element("coefficients-words").textContent =
    `${sum} a sum: the intercept, plus each feature times its coefficient. A standardised coefficient is the change for one standard ` +
    "deviation of the feature, so these can be compared. A coefficient says what the model uses, not what causes the outcome.";
  const labels = Array.isArray(report.features[0]?.coefficient)
    ? report.classes ?? report.features[0].coefficient.map((_, k) => `class ${k + 1}`)
    : [null];
  coefficientsTable(labels);
  coefficientsFigure(labels);
}

const ofClass = (value, k) => (Array.isArray(value) ? value[k] ?? null : value ?? null);

function coefficientsTable(labels) {
  const columns = labels.flatMap((label, k) => {
    const group = label ?? undefined;
    return [
      { label: "Coefficient", group, value: (f) => ofClass(f.coefficient, k), format: () => number },
      { label: "Standardised", group, value: (f) => ofClass(f.standardised, k) },
    ];
  });
  const name = { label: "Feature", group: labels[0] === null ? undefined : " ", words: true, value: (f) => f.name };
  const intercept = { name: "(intercept)", coefficient: report.intercept, standardised: null };
  sortableTable(element("coefficients"), "coefficients-caption", "The coefficients. Press a heading to sort by it.",
    [name, ...columns], [...report.features, intercept], { column: 2, up: false });
}

function coefficientsFigure(labels) {
  const rowsOf = (k) => report.features
    .filter((f) => isKnown(ofClass(f.standardised, k)))
    .map((f) => {
      const value = ofClass(f.standardised, k);
      const lines = [f.name, `Standardised: ${number(value)}`, `Coefficient: ${number(ofClass(f.coefficient, k))}`];
      return { name: f.name, value, note: number(value), lines };
    });
  if (rowsOf(0).length === 0) return absentFigure("coefficients-figure", `There is no picture, because standardised coefficients are absent: ${why("standardised")}`);
  const show = (k) => {
    const of = labels[k] === null ? "" : `${labels[k]}: `;
    signedBars("coefficients-figure", `${of}standardised coefficients, the largest first.`.replace(/^s/, "S"), "Standardised coefficient", rowsOf(k), signTone);
  };
  if (labels[0] !== null) {
    const select = element("class");
    element("class-choice").hidden = false;
    select.replaceChildren(...labels.map((label, k) => make("option", { value: k }, label)));
    select.addEventListener("change", () => show(Number(select.value)));
  }
  show(0);
}

// ---- the end of the page

function advice() {
  const given = report.advice ?? [];
  const words = given.length ? given : ["There is no advice on this model."];
  element("advice").replaceChildren(...words.map((line) => make("li", {}, line)));
}

function settings() {
  const rows = [...(report.settings ?? []), ["Method of training", report.solver.method], ["Program", `bidro ${report.version}`], ["Date", longDate(report.created)]];
  const lines = rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "words" }, String(value))));
  const head = make("tr", {}, make("th", { scope: "col", class: "words" }, "Setting"), make("th", { scope: "col", class: "words" }, "Value"));
  element("settings").replaceChildren(make("caption", { id: "settings-caption" }, "How this model was trained."), make("thead", {}, head), make("tbody", {}, ...lines));
  element("colophon").textContent = "This file is complete in itself: it loads nothing, and sends nothing.";
}

function contents() {
  const heads = [...document.querySelectorAll("main h2")];
  element("contents").replaceChildren(...heads.map((h) => make("li", {}, make("a", { href: `#${h.id}` }, h.textContent))));
}

for (const section of [contents, about, certificate, clientsTable, dots, binds, worstCase, solver, calibration, coefficients, advice, settings]) {
  try {
    section();
  } catch (error) {
    // One part that fails must not take the others with it, and must not fail in silence.
    console.error(section.name, error);
    element("dated").after(make("p", { class: "absent" }, `A part of this page could not be drawn (${section.name}).`));
  }
}
followers.forEach((follow) => follow());
