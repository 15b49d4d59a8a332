// The other sections: how the model was trained. The end of this file draws the whole page.

// ---- who binds

function binds() {
  const binding = clients.filter((c) => c.binding).map((c) => c.name);
  const meaning =
    "Clients that count for more in the worst mix than their share of the rows decide the worst case: " +
    "a lower loss there would lower it.";
  const named = binding.length > 8 ? [...binding.slice(0, 8), `${count(binding.length - 8)} more`] : binding;
  const who = binding.length
    ? ` Here that is ${listed(named)}.`
    : " Here none does.";
  element("binds-words").textContent = meaning + who;
  const byWeight = [...clients].sort((a, b) => b.weight - a.weight || b.share - a.share);
  const caption = () => {
    const shown = byWeight.slice(0, mostRows());
    const rest = byWeight.slice(shown.length).reduce((sum, c) => sum + c.weight, 0);
    const which =
      shown.length < clients.length
        ? ` The ${shown.length} clients with the largest weights, of ${count(clients.length)};` +
          ` the others weigh ${percent(rest)} together.`
        : "";
    return `The weight of each client in the worst mixture, with its share of the rows.${which}`;
  };
  const most = Math.max(...clients.flatMap((c) => [c.weight, c.share]));
  figure(
    "binds-figure",
    caption,
    (width) =>
      rowsChart(width, byWeight.slice(0, mostRows()).map(weightRow), {
        scale: (from, to) => linearScale(0, 100.1 * most, from, to),
        label: "Per cent",
        height: 28,
      }),
    [
      { shape: "bar", tone: "blue", label: "Weight in the worst mixture" },
      { shape: "bar", tone: "grey", label: "Share of the rows" },
    ],
  );
}

function weightRow(client) {
  const lines = [client.name, `Weight ${percent(client.weight)}`, `Share of rows ${percent(client.share)}`];
  if (anyRadius) lines.push(`Robust risk in training ${loss(client.robust)}`, `Radius in training ${number(client.radius)}`);
  return {
    name: client.name,
    tag: client.binding ? "(binds)" : "",
    note: `${tenths(client.weight)} (share ${tenths(client.share)})`,
    marks: (x, y) => [
      bar(x, 0, 100 * client.weight, y - 5, 9, "blue", lines),
      bar(x, 0, 100 * client.share, y + 5, 7, "grey", lines),
    ],
  };
}

// ---- bars to both sides of zero, for shifts and coefficients

function signedBars(id, caption, label, all, toneOf, extent) {
  const largest = [...all].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const shown = () => largest.slice(0, mostRows());
  const values = extent ?? all.map((row) => row.value);
  let [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  if (low === high) [low, high] = [-1, 1];
  const cut = () => (shown().length < all.length ? ` The ${shown().length} largest of ${count(all.length)}.` : "");
  return figure(
    id,
    () => caption + cut(),
    (width) =>
      rowsChart(
        width,
        shown().map((row) => signedRow(row, toneOf(row.value))),
        {
          scale: (from, to) => linearScale(low, high, from, to),
          label,
          height: 24,
          lines: [{ value: 0, tone: "ink thin" }],
        },
      ),
  );
}

function signedRow({ name, value, note, lines }, tone) {
  return { name, note, marks: (x, y) => [bar(x, 0, value, y, 13, tone, lines)] };
}

const signTone = (value) => (value < 0 ? "orange" : "blue");

// ---- the worst case

function worstCase() {
  const cases = (report.worst_case ?? []).filter((c) => c.moved.length);
  if (cases.length === 0) {
    element("worst-words").hidden = element("worst-choice").hidden = true;
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
    const known = isKnown(m.before);
    const means = known ? `${number(m.before)} → ${number(m.before + m.change)}` : `by ${number(m.change)}`;
    return {
      name: m.name,
      value: m.in_sd,
      note: means,
      lines: [m.name, known ? `Mean ${means}` : `The mean moves ${means}`, `Rows move by ${number(m.in_sd)} standard deviations`],
    };
  });
  const caption =
    `${client}: how far the worst case typically moves a row, feature by feature, largest first. ` +
    "Rows move in both directions, so that the mean may stay: on the right, the mean in the data and in " +
    "the worst case, or by how much it moves where that is not reported (by clients, or of few rows). The axis is the same for all clients.";
  signedBars("worst-figure", caption, "Average move, in standard deviations", rows, signTone, extent);
}

// ---- convergence

function solver() {
  const { rounds, gap, method, history, surrogate } = report.solver;
  const regret = report.criterion === "regret";
  const worst = regret ? "worst-case regret" : "worst case";
  // A regret may be near 0, so that its gap is relative to a loss.
  const part = regret ? "the mean loss that clients could attain by themselves plus that regret" : "it";
  // What bounds a surrogate from below bounds no worst case.
  const proven = surrogate
    ? `no model of this kind brings what training minimises lower by more than that part of ${part}. That is a ` +
      `surrogate, never below the ${worst}, in which ${surrogate}: the ${worst} of another model may be lower still.`
    : `no model of this kind has a ${worst} lower than this one's by more than that part of ${part}.`;
  const close = isKnown(gap)
    ? `It ended with a relative gap of ${number(gap)}: ${proven}`
    : "How close it came to the best possible is not certified.";
  element("solver-words").textContent =
    `Training took ${plural(rounds, "round")}${report.federated ? " of messages between the server and the sites" : ""} (method: ${method}). ${close}`;
  const points = (history ?? []).map(([upper, lower], i) => ({ round: i + 1, upper, lower }));
  if (points.length < 2) {
    // Where one round was enough, there is nothing to draw.
    if (points.length) element("bounds-figure").remove();
    else absentFigure("bounds-figure", `Not shown: ${why("history")}`);
    element("gap-figure").remove();
    return;
  }
  const bound = (label, tone, shape, key) => ({ label, tone, shape, values: points.map((p) => p[key]) });
  const bounds = [
    bound(`Upper bound: the model's ${surrogate ? "surrogate" : worst}`, "vermilion", "down", "upper"),
    bound(`Lower bound: ${surrogate ? "the surrogate " : ""}of any model`, "blue", "up", "lower"),
  ];
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  const last = points.at(-1).upper ?? 0;
  const off = points.some((p) => known([p.upper, p.lower]).some((v) => Math.abs(v - last) > reach(last)));
  const edge = off ? " Bounds that are far off stand at the edge." : "";
  const value = surrogate ? "surrogate that training minimises" : `worst-case ${regret ? "regret" : "loss"}`;
  const caption = `The ${value}${inUnits}, between two bounds that close in on the best possible.${edge}`;
  roundsFigure("bounds-figure", caption, bounds, false);
  const relative = points.map(({ upper, lower }) =>
    isKnown(upper) && isKnown(lower) ? (upper - lower) / Math.abs(upper) : null,
  );
  const gaps = [{ label: "Relative gap", tone: "green", shape: "diamond", values: relative }];
  const zero = relative.some((gap) => gap === 0) ? " A gap of zero has no place on it." : "";
  const other = regret ? " It is relative to a regret, the gap that training ended with to a loss." : "";
  const words = `The gap between the two, relative to the upper bound, on a logarithmic axis.${other}${zero}`;
  roundsFigure("gap-figure", words, gaps, true);
}

function roundsFigure(id, caption, series, logarithmic) {
  const drawable = (v) => isKnown(v) && (!logarithmic || v > 0);
  if (!series.some((s) => s.values.some(drawable)))
    return absentFigure(id, "Not shown: no bound was recorded that can be drawn.");
  figure(id, caption, (width) => roundsChart(width, series, logarithmic, drawable), series);
}

function roundsChart(width, series, logarithmic, drawable) {
  const all = series.flatMap((s) => s.values.filter(drawable));
  const [height, last] = [260, Math.max(2, series[0].values.length)];
  const end = series[0].values.findLast(drawable) ?? all.at(-1);
  const y = logarithmic
    ? logScale(Math.min(...all) / 2, Math.max(...all) * 2, height - 46, 10, 26)
    : linearScale(...rangeAround(all, end), height - 46, 10, 45);
  const left = 14 + Math.max(...y.ticks.map((t) => widthOf(number(t))));
  const x = linearScale(1, last, left + 10, width - 14, 45, 1);
  const svg = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart" },
    ...roundsAxes(x, y, left, width, height),
  );
  for (const s of series) {
    const points = s.values.map((v, i) => ({ v, round: i + 1 })).filter((p) => drawable(p.v));
    const path = points.map((p) => `${x(p.round)},${y(p.v)}`).join(" ");
    svg.append(draw("polyline", { points: path, class: `line ${s.tone}` }));
    svg.append(
      ...points.map((p) =>
        mark(symbol(s.shape, x(p.round), y(p.v), s.tone), [
          `Round ${p.round}`,
          `${s.label}: ${number(p.v)}${logarithmic ? "" : unit}`,
        ]),
      ),
    );
  }
  return svg;
}

/** Bounds of the first rounds can be enormous; those further off than this stand at the edge. */
const reach = (end) => 5 * Math.abs(end) || Infinity;

function rangeAround(all, end) {
  const low = Math.max(Math.min(...all), end - reach(end));
  const high = Math.min(Math.max(...all), end + reach(end));
  const room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

function roundsAxes(x, y, left, width, height) {
  const bottom = height - 46;
  const across = y.ticks.flatMap((t) => [
    draw("line", { x1: left, x2: width - 6, y1: y(t), y2: y(t), class: "grid" }),
    draw("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "tick" }, number(t)),
  ]);
  const down = x.ticks.map((t) =>
    draw("text", { x: x(t), y: bottom + 20, "text-anchor": "middle", class: "tick" }, count(t)),
  );
  const label = draw(
    "text",
    { x: (left + width) / 2, y: bottom + 38, "text-anchor": "middle", class: "axis" },
    "Round",
  );
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
  element("calibration-words").textContent =
    `By cross-validation inside the clients in ${plural(folds, "fold")}, ` +
    `among ${plural(candidates.length, "candidate")}. The choice is: ${candidateName(found.chosen)}. ` +
    choiceRule(found) +
    " Losses on rows left out are those of rows like these. They promise nothing about others.";
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  const against = isKnown(found.pooled) ? ", and the change against pooled training" : "";
  sortableTable(
    element("calibration"),
    "calibration-caption",
    `Losses on the rows left out${inUnits}${against}. Press a heading to sort by it.`,
    candidateColumns(found),
    candidates.map((candidate, k) => ({ ...candidate, k })),
    { column: 1, up: true },
  );
}

function choiceRule({ max_cost: most, given, pooled }) {
  if (given) return "Its weights were given: candidates with other weights are only to compare.";
  const by = "the loss of the worst fifth of the clients on the rows left out";
  if (!isKnown(most)) return `Of all it is the one with the lowest value of ${by}.`;
  // Of one client alone there is no mixture, and radii alone are compared.
  const before = isKnown(pooled) ? "pooled training" : "training without a radius";
  return (
    `Against ${before}, a candidate counts if it lowers ${by} by more than two standard errors (over the ` +
    "clients' folds), and if the rise of the mean loss plus one standard error (over the clients) is at most " +
    `${percent(most)}; of few clients a little more than two and one is required. Of those that count it is the one ` +
    `with the lowest worst fifth; where none does, it is ${before}. So a candidate in the table that looks better ` +
    "than the choice may be so by chance."
  );
}

function candidateColumns({ pooled, candidates, chosen }) {
  const before = isKnown(pooled) ? candidates[pooled] : null;
  const both = (field, group) => {
    const loss = { label: "Loss", group, value: (c) => c[field] };
    const change = (c) => c[field] / before[field] - 1;
    return before ? [loss, { label: "Change", group, value: change, format: () => signed }] : [loss];
  };
  const isChosen = (c) => (c.k === chosen ? [" ", make("span", { class: "tag" }, "chosen")] : []);
  return [
    { label: "Candidate", group: " ", words: true, value: (c) => candidateName(c.k), after: isChosen },
    ...both("mean", "Mean over all rows"),
    ...both("worst_decile", "Worst tenth of the clients"),
    { label: "Loss", group: "Worst fifth", value: (c) => c.score, classes: "score" },
  ];
}

// ---- coefficients

function coefficients() {
  const several = Array.isArray(report.features[0]?.coefficient);
  const sum =
    report.loss.log_link ? "The logarithm of the prediction is" : report.task === "regression" ? "The prediction is" : several ? "The score of a class is" : "The score (the logarithm of the odds) is";
  element("coefficients-words").textContent =
    `${sum} a sum: the intercept, plus each feature times its coefficient. ` +
    "A standardised coefficient is the change for one standard deviation of the feature, so these can be compared. " +
    "A coefficient says what the model uses, not what causes the outcome.";
  const labels = several
    ? (report.classes ?? report.features[0].coefficient.map((_, k) => `class ${k + 1}`))
    : [null];
  coefficientsFigure(labels);
}

const ofClass = (value, k) => (Array.isArray(value) ? (value[k] ?? null) : (value ?? null));

/** Of one class, where there are several: side by side they would not fit. */
function coefficientsTable(of, k) {
  const columns = [
    { label: "Feature", words: true, value: (f) => f.name },
    { label: "Coefficient", value: (f) => ofClass(f.coefficient, k), format: () => number },
    { label: "Standardised", value: (f) => ofClass(f.standardised, k) },
  ];
  const intercept = { name: "(intercept)", coefficient: report.intercept, standardised: null };
  sortableTable(
    element("coefficients"),
    "coefficients-caption",
    `${of}the coefficients. Press a heading to sort by it.`.replace(/^t/, "T"),
    columns,
    [...report.features, intercept],
    { column: 2, up: false },
  );
}

function coefficientsFigure(labels) {
  const rowsOf = (k) =>
    report.features
      .filter((f) => isKnown(ofClass(f.standardised, k)))
      .map((f) => {
        const value = ofClass(f.standardised, k);
        const lines = [
          f.name,
          `Standardised: ${number(value)}`,
          `Coefficient: ${number(ofClass(f.coefficient, k))}`,
        ];
        return { name: f.name, value, note: number(value), lines };
      });
  const show = (k) => {
    const of = labels[k] === null ? "" : `${labels[k]}: `;
    coefficientsTable(of, k);
    if (rowsOf(k).length === 0)
      return absentFigure(
        "coefficients-figure",
        `There is no picture, because standardised coefficients are absent: ${why("standardised")}`,
      );
    signedBars(
      "coefficients-figure",
      `${of}standardised coefficients, the largest first.`.replace(/^s/, "S"),
      "Standardised coefficient",
      rowsOf(k),
      signTone,
    );
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
  const rows = [
    ...(report.settings ?? []),
    ...(trained ? [["Method of training", report.solver.method]] : []),
    ["Program", `bidro ${report.version}`],
    ["Date", longDate(report.created)],
  ];
  const lines = rows.map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "words" }, String(value))),
  );
  const head = make(
    "tr",
    {},
    make("th", { scope: "col", class: "words" }, "Setting"),
    make("th", { scope: "col", class: "words" }, "Value"),
  );
  element("settings").replaceChildren(
    make("caption", { id: "settings-caption" }, make("span", {}, trained ? "How this model was trained." : "What was judged, and how.")),
    make("thead", {}, head),
    make("tbody", {}, ...lines),
  );
  element("colophon").textContent = "This file is complete in itself: it loads nothing, and sends nothing.";
}

function contents() {
  const heads = [...document.querySelectorAll("main h2:not(.unseen)")];
  element("contents").replaceChildren(
    ...heads.map((h) => make("li", {}, make("a", { href: `#${h.id}` }, h.textContent))),
  );
}

/** Takes away the parts that this report has nothing for. */
function leaveOut() {
  if (!trained) {
    document.querySelectorAll("[data-of-training]").forEach((part) => part.remove());
    element("h-about").textContent = "What was judged, and on whom";
    element("message").classList.add("one");
  }
  if (!inSomeLevel("against")) element("against").remove();
  if (!times) element("survival").remove();
  // Of curves there are no coefficients.
  if (trained) element(report.curves ? "looks" : "drawn").remove();
}

const OF_TRAINING = [frontier, binds, worstCase, solver, calibration, curves, coefficients];

leaveOut();
for (const section of [
  lead,
  concerns,
  well,
  promised,
  privately,
  frontier,
  gains,
  ...(times ? [survival] : []),
  federated,
  influence,
  contents,
  about,
  certificate,
  ...(inSomeLevel("against") ? [against] : []),
  clientsTable,
  dots,
  binds,
  worstCase,
  solver,
  calibration,
  ...(report.curves ? [curves] : [coefficients]),
  advice,
  settings,
].filter((section) => trained || !OF_TRAINING.includes(section))) {
  try {
    section();
  } catch (error) {
    // One part that fails must not take the others with it, and must not fail in silence.
    console.error(section.name, error);
    element("lead").after(
      make("p", { class: "absent" }, `A part of this page could not be drawn (${section.name}).`),
    );
  }
}
followers.forEach((follow) => follow());
