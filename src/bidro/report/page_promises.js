// What was trained, what is promised of it exactly, and how each client fares.

// Without held-out rows, a client's loss is that of training over again.
const judged = report.held_out_rows > 0 && clients.some((c) => isKnown(c.loss));
const byLoss = (client) => (judged ? client.loss : null) ?? client.training_loss ?? 0;

// ---- what was trained

function about() {
  const few = report.classes ? ` (${listed(report.classes, "or")})` : "";
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  const origin = trained
    ? [
        `This is a ${report.task} model.`,
        `It predicts ${report.target}${few} from ${plural(report.features.length, "feature")}.`,
        `It was trained on ${plural(report.rows, "row")} of ${plural(clients.length, "client")};`,
      ]
    : [
        `This model was not trained here: of it, only what it predicted for ${report.target}${few} is known,`,
        `on ${plural(report.held_out_rows, "row")} of ${plural(clients.length, "client")};`,
      ];
  const words = [
    ...origin,
    `the column ${report.client_column} says which client a row is from.`,
    `Its loss is the ${report.loss.name}${inUnits}: lower is better.`,
    ...(trained ? [] : [report.origin]),
    ...howItDoes(),
  ];
  // Reports of older versions have no such words.
  if (report.chosen) words.push(report.chosen.radius, report.chosen.weights);
  if (report.chosen?.criterion) words.push(report.chosen.criterion);
  element("about").textContent = words.join(" ");
  facts();
  element("dated").textContent = `${longDate(report.created)}, bidro ${report.version}`;
}

const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

function howItDoes() {
  const overall = report.overall;
  if (!overall) return [];
  const worst = [...clients].sort((a, b) => byLoss(b) - byLoss(a))[0];
  const where = !trained
    ? ["On these rows, which it must not have been trained on,"]
    : judged
    ? [`A further ${plural(report.held_out_rows, "row")} were held out of training.`, "On those,"]
    : [
        `How it does on rows that training never saw is not known: ${why("held_out")}`,
        "On the rows of training,",
      ];
  return [
    ...where,
    `the mean loss${somePersonal ? " of the shared model" : ""} is ${loss(overall.mean)};`,
    `that of the worst client, ${worst.name}, is ${loss(overall.worst_client)};`,
    `and that of the worst tenth of the clients is ${loss(overall.worst_decile)}.`,
  ];
}

function facts() {
  const all = [
    ["Clients", count(clients.length)],
    ...(trained ? [["Rows trained on", count(report.rows)]] : []),
    ["Held-out rows", count(report.held_out_rows)],
    ["Mean loss", loss(report.overall?.mean)],
    ["Worst client", loss(report.overall?.worst_client)],
    ["Worst tenth of clients", loss(report.overall?.worst_decile)],
  ];
  if (somePersonal)
    all.push(
      ["Mean loss, personal models", loss(report.overall?.personal?.mean)],
      ["Worst tenth, personal models", loss(report.overall?.personal?.worst_decile)],
    );
  const given = all.filter(([, value]) => value !== "–");
  element("facts").replaceChildren(
    ...given.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
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
  personal: { title: "With personal models, losses clipped", tone: "sky", id: "personal-bound" },
  mistakes: { title: "Share of mistakes", tone: "purple", id: "mistakes-bound" },
  personal_mistakes: { title: "Share of mistakes, with personal models", tone: "sky", id: "personal-mistakes-bound" },
  shift: { title: "Clipped, with room for shift", tone: "vermilion", id: "shift-bound" },
};

// Stated only where there are classes, or personal models; what is not wanted is not called absent.
const OPTIONAL = ["mistakes", "personal", "personal_mistakes"];
const isShare = (name) => name.endsWith("mistakes");

const levelWords = () => (isKnown(here().confidence) ? percent(here().confidence) : "no stated confidence");
const valued = (id, value, text) => make("span", { id, class: "value", "data-value": value }, text);

function certificate() {
  const names = Object.keys(STATEMENTS).filter(
    (name) => (trained && !OPTIONAL.includes(name)) || inSomeLevel(name) || levels.some((l) => l.too_few?.[name]),
  );
  confidenceControl();
  followers.push(() => {
    element("level").textContent = levelWords();
    element("confidence").setAttribute("aria-valuetext", `${levelWords()} confidence`);
    element("statement").textContent = statement();
    element("statements").replaceChildren(...names.filter((n) => here()[n]).map(card));
    notStated(names.filter((n) => !here()[n]));
  });
  certificateFigure();
}

function confidenceControl() {
  const slider = element("confidence");
  slider.max = Math.max(levels.length - 1, 0);
  slider.value = chosen;
  slider.disabled = levels.length < 2;
  slider.parentElement.hidden = element("confidence-how").hidden = levels.length < 2;
  element("control").hidden = !Object.keys(STATEMENTS).some(inSomeLevel);
  element("ticks").replaceChildren(...levels.map((l) => make("span", {}, percent(l.confidence))));
  slider.addEventListener("input", () => {
    chosen = Number(slider.value);
    followers.forEach((follow) => follow());
  });
}

function statement() {
  const { interval, held_out: held, clipped, mistakes, shift, personal, personal_mistakes: personalMistakes } = here();
  const parts = [];
  const people = (part) => (part?.people ? " as a mean of people" : "");
  const subject = () => (parts.length ? "it" : "the true mean loss");
  if (interval) parts.push(`${subject()} lies ${between(interval)}`);
  if (held) parts.push(`by held-out rows, ${subject()} is at most ${loss(held.bound)}${people(held)}`);
  if (clipped)
    parts.push(
      `with each loss counted as at most ${loss(clipped.largest)}, ${subject()} is at most ${loss(clipped.bound)}${people(clipped)}`,
    );
  if (personal)
    parts.push(`counted so, with every client using its personal model, ${subject()} is at most ${loss(personal.bound)}${people(personal)}`);
  if (shift)
    parts.push(
      `with room for a shift of ${number(shift.radius)} inside each client as well, it is at most ${loss(shift.bound)}${people(clipped)}`,
    );
  if (mistakes) parts.push(`at most ${percent(mistakes.bound)} of predictions are wrong${people(mistakes)}`);
  if (personalMistakes) parts.push(`with personal models, at most ${percent(personalMistakes.bound)} of predictions are wrong${people(personalMistakes)}`);
  if (parts.length === 0 && Object.keys(here().too_few ?? {}).length)
    return `There are too few rows to promise anything at a confidence of ${levelWords()}. How many would do is below.`;
  if (parts.length === 0) return "No statement can be made about new rows. The reasons are below.";
  const [first, ...rest] = parts;
  return `At a confidence of ${levelWords()}, for ${report.mixtures}: ${[first, ...rest.map(sentence)].join(". ")}.`;
}

function between({ lower, upper }) {
  return isKnown(lower) ? `between ${number(lower)} and ${loss(upper)}` : `at or below ${loss(upper)}`;
}

function card(name) {
  const { title, tone, id } = STATEMENTS[name];
  const found = here()[name];
  const head = make("h3", { class: tone }, title);
  const promise = here().promises?.[name];
  const figures = name === "interval" ? intervalFigures(found) : boundFigures(name, id, found);
  return make(
    "article",
    {},
    head,
    figures,
    ...(promise ? [make("p", {}, promise)] : []),
    ...extra(name, found),
  );
}

/** In one line, with the reasons behind it. */
function notStated(names) {
  const fold = element("not-stated");
  fold.hidden = names.length === 0;
  const titles = names.map((name) => STATEMENTS[name].title.replace(/^./, (c) => c.toLowerCase()));
  fold.querySelector("summary").textContent = `Not stated: ${listed(titles)}. Why?`;
  fold
    .querySelector("dl")
    .replaceChildren(
      ...names.flatMap((name) => [
        make("dt", {}, STATEMENTS[name].title),
        make("dd", {}, here().too_few?.[name] ?? sentence(why(name))),
      ]),
    );
}

function intervalFigures({ lower, upper }) {
  const top = valued("interval-upper", upper, number(upper));
  const from = isKnown(lower) ? [valued("interval-lower", lower, number(lower)), " to "] : ["at most "];
  return make("p", { class: "figures" }, ...from, top, unit);
}

function boundFigures(name, id, { bound, people }) {
  const text = isShare(name) ? percent(bound) : number(bound);
  return make(
    "p",
    { class: "figures" },
    "at most ",
    valued(id, bound, text),
    isShare(name) ? "" : unit,
    people ? " as a mean of people" : "",
  );
}

function extra(name, found) {
  if (name !== "interval" || !isKnown(found.sampling)) return [];
  const [sampling, differences] = [number(found.sampling), number(found.heterogeneity)];
  const words = `Its lower end allows ${sampling} for sampling and ${differences} for differences between clients.`;
  return [make("p", {}, words)];
}

function certificateFigure() {
  const names = ["interval", "held_out", "clipped", "personal", "shift"].filter(inSomeLevel);
  if (names.length === 0)
    return absentFigure(
      "certificate-figure",
      "There is no picture, because no statement about the mean loss could be made.",
    );
  const lines = [
    { value: report.overall?.mean, tone: "ink dashed", label: "mean over all clients" },
    { value: report.overall?.worst_client, tone: "ink", label: "worst client" },
  ].filter((line) => isKnown(line.value));
  const source = judged ? "observed on held-out rows" : "observed in training";
  const ends = levels.flatMap((l) => names.map((n) => l[n]?.upper ?? l[n]?.bound));
  const scale = lossScale([...ends, ...lines.map((l) => l.value)]);
  const caption =
    "Where the true mean loss lies at the chosen confidence. A bar that starts at the left edge is an upper bound " +
    `only, or reaches below the axis.${lines.length ? ` Lines: the loss ${source}.` : ""}`;
  const redraw = figure(
    "certificate-figure",
    caption,
    (width) =>
      rowsChart(width, names.filter((n) => here()[n]).map(statementRow), {
        scale,
        label: lossLabel,
        height: 22,
        above: true,
        lines: lines.map((l) => ({ ...l, words: [sentence(l.label), `${loss(l.value)}, ${source}`] })),
      }),
    lines.map((l) => ({ shape: "line", tone: l.tone, label: sentence(`${l.label}, ${source}`) })),
  );
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

// ---- against the other model

function against() {
  const columns = [
    { label: "Client", words: true, value: (c) => c.name },
    { label: "Mean difference", value: atLevel("against", "means"), format: () => number, classes: "difference" },
    { label: "At most", value: atLevel("against", "clients"), format: () => number, classes: "difference-bound" },
  ];
  const inUnits = report.loss.unit ? `, in ${report.loss.unit}` : "";
  const { largest: most, people: byPeople } = here().against;
  const people = byPeople ? " as a mean of people" : "";
  const below = isKnown(most)
    ? `each counted as at most ${loss(most)}: below 0 it is lower as counted${people}`
    : `below 0 this model is better${people}`;
  const caption =
    `The ${report.loss.name} of this model less that of the other on the same rows${inUnits}, ${below}. ` +
    "A client's bound holds at the chosen confidence by itself. Press a heading to sort by it.";
  const start = { column: 2, up: false };
  const fill = sortableTable(element("against-clients"), "against-caption", caption, columns, clients, start);
  followers.push(() => {
    element("against-words").textContent = here().against.promise;
    fill();
  });
}

// ---- the clients

const atLevel = (part, field) => (client) => here()[part]?.[field]?.[clients.indexOf(client)] ?? null;

function clientsTable() {
  const columns = [
    {
      label: "Name",
      group: "Client",
      words: true,
      value: (c) => c.name,
      after: bindingTag,
      data: (c) => ({ "data-client": c.name }),
    },
    ...(trained ? [{ label: "Rows", group: "Client", value: (c) => c.rows, format: () => count }] : []),
    ...(judged ? heldOutColumns("On held-out rows") : []),
    ...(judged || trained ? [] : [{ label: "Rows", group: "Client", value: (c) => c.held_out_rows, format: () => count }]),
    ...(trained ? trainingColumns("In training") : []),
    ...certificateColumns("At the chosen confidence"),
  ];
  const byRisk = Math.max(
    0,
    columns.findIndex((c) => c.classes === "loss" || (!judged && c.label === "Loss")),
  );
  const table = element("clients");
  const fill = sortableTable(table, "clients-caption", "", columns, clients, { column: byRisk, up: false });
  followers.push(() => {
    table.caption.firstChild.textContent = clientsCaption();
    fill();
  });
  clientsWords();
}

// Without a radius, a robust risk is the loss in training.
const anyRadius = clients.some((c) => c.radius !== 0);

const bindingTag = (client) => (client.binding ? [" ", make("span", { class: "tag" }, "decides")] : []);

function trainingColumns(group) {
  return [
    { label: "Loss", group, value: (c) => c.training_loss },
    ...(anyRadius
      ? [
          { label: "Radius", group, value: (c) => c.radius },
          { label: "Robust risk", group, value: (c) => c.robust },
        ]
      : []),
    { label: "Weight", group, value: (c) => c.weight, format: () => tenths, classes: "weight" },
  ];
}

function heldOutColumns(group) {
  const plusMinus = (c, text) => (isKnown(c.se) ? ` ± ${text(c.se)}` : "");
  return [
    { label: "Rows", group, value: (c) => c.held_out_rows, format: () => count },
    { label: "Loss ± error", group, value: (c) => c.loss, tail: plusMinus, classes: "loss" },
    ...(comparable ? againstPooled("Against pooled training") : []),
  ];
}

/** Losses on the same rows under pooled training and the model that the client uses, and what changed. */
function againstPooled(group) {
  const plusMinus = (c, text) => (isKnown(c.personal_change.se) ? ` ± ${text(c.personal_change.se)}` : "");
  return [
    { label: "Pooled", group, value: (c) => c.pooled, classes: "pooled" },
    { label: "Model in use", group, value: (c) => c.personal, classes: "personal" },
    { label: "Change ± error", group, value: (c) => c.personal_change.mean, tail: plusMinus, classes: "change" },
  ];
}

function certificateColumns(group) {
  const all = [
    ["held_out", "clients", "Held\u2011out bound", "held-out"],
    ["clipped", "clients", "Clipped bound", "clipped"],
    ["personal", "clients", "Clipped, personal model", "personal-bound"],
    ["mistakes", "clients", "Mistakes at most", "mistakes"],
    ["personal_mistakes", "clients", "Mistakes, personal model", "personal-mistakes"],
    ["interval", "radii", "Radius", "radius"],
    ["interval", "risks", "Robust risk", "robust"],
  ];
  return all
    .filter(([part, field]) => levels.some((l) => l[part]?.[field]))
    .map(([part, field, label, classes]) => ({
      label,
      group,
      classes,
      value: atLevel(part, field),
      format: isShare(part) ? () => tenths : undefined,
    }));
}

const boundsAreAlone = () => levels.some((l) => Object.keys(STATEMENTS).some((name) => l[name]?.each_by_itself));

function clientsCaption() {
  const inUnits = report.loss.unit ? ` Losses, risks and bounds are in ${report.loss.unit}.` : "";
  const itself = boundsAreAlone() ? ": the clients' bounds have it each by itself, not all together" : "";
  const level = Object.keys(STATEMENTS).some(inSomeLevel) ? ` The chosen confidence is ${levelWords()}${itself}.` : "";
  const scrolls = clients.length > TALL ? "; the table scrolls" : "";
  const all = clients.length === 1 ? "The one client" : `All ${count(clients.length)} clients`;
  return `${all}${scrolls}.${inUnits}${level} Press a heading to sort by it.`;
}

function clientsWords() {
  const words = judged
    ? "The loss on held-out rows is what to expect of new rows like those. " +
      (trained ? "The loss in training is for comparison: it is usually a little lower." : "")
    : trained
      ? "Only losses on the rows of training are known, and these flatter a model."
      : "The clients reported bounds alone: their losses are not known.";
  const clipped = judged ? here().clipped : null;
  const most = clipped ? ` No held-out row is counted as more than ${loss(clipped.largest)}.` : "";
  const used = report.overall?.personal
    ? " Both are of the shared model; “model in use” is the client's personal one, where it has one."
    : "";
  element("clients-words").textContent = words + most + used;
  const missing = [];
  if (!judged && trained) missing.push(`The loss on held-out rows is absent: ${why("held_out")}`);
  element("clients-absent").textContent = missing.join(" ");
  element("clients-absent").hidden = missing.length === 0;
}

// ---- the clients side by side

const SERIES = [
  { label: "Loss in training", shape: "circle", tone: "grey", dy: -6, value: (c) => c.training_loss },
  {
    label: "Loss on held-out rows, ± one standard error",
    short: "Loss on held-out rows",
    shape: "square",
    tone: "sky",
    dy: 6,
    value: (c) => (judged ? c.loss : null),
    spread: (c) => c.se,
  },
  {
    label: "Held-out bound",
    shape: "up",
    tone: "green",
    dy: -6,
    value: atLevel("held_out", "clients"),
    every: ["held_out", "clients"],
  },
  {
    label: "Clipped bound",
    shape: "down",
    tone: "orange",
    dy: 6,
    value: atLevel("clipped", "clients"),
    every: ["clipped", "clients"],
  },
  {
    label: "Robust risk at the chosen confidence",
    short: "Robust risk",
    shape: "diamond",
    tone: "blue",
    dy: -6,
    value: atLevel("interval", "risks"),
    every: ["interval", "risks"],
  },
];

/** At every level, so that the axis stays where it is when the level changes. */
const allValues = ({ value, every, spread }) =>
  every
    ? levels.flatMap((l) => l[every[0]]?.[every[1]] ?? [])
    : clients.filter((c) => isKnown(value(c))).map((c) => value(c) + (spread?.(c) ?? 0));

function dots() {
  const series = SERIES.filter((s) => known(allValues(s)).length);
  const shown = [...clients].sort((a, b) => byLoss(b) - byLoss(a)).slice(0, MOST_ROWS);
  const scale = lossScale(series.flatMap(allValues));
  const by = judged ? "loss on held-out rows" : "loss in training";
  const which =
    shown.length < clients.length
      ? `The ${shown.length} clients with the highest ${by}, of ${count(clients.length)}; the table above has all.`
      : `All clients${judged || trained ? `, the highest ${by} first` : ""}.`;
  const bounds = series.some((s) => s.every?.[0] === "interval") ? "Bounds and robust risks" : "Bounds";
  const level = series.some((s) => s.every) ? ` ${bounds} are at the chosen confidence${boundsAreAlone() ? ", each by itself" : ""}.` : "";
  const words = `${which}${level} Point at a mark to read it, or use Tab and the arrow keys.`;
  const redraw = figure(
    "dots-figure",
    words,
    (width) =>
      rowsChart(
        width,
        shown.map((c) => dotRow(c, series)),
        {
          scale,
          label: lossLabel,
          height: 28,
        },
      ),
    series,
  );
  followers.push(redraw);
}

function dotRow(client, series) {
  const drawn = series.filter((s) => isKnown(s.value(client)));
  return {
    name: client.name,
    tag: client.binding ? "(binds)" : "",
    marks: (x, y) => [guide(x, y), ...drawn.flatMap((s) => dot(client, s, x, y + s.dy))],
  };
}

function dot(client, { label, short, shape, tone, value, spread }, x, y, read = loss) {
  const at = value(client);
  const se = spread?.(client);
  const group = draw("g");
  if (isKnown(se))
    group.append(draw("line", { x1: x(at - se), x2: x(at + se), y1: y, y2: y, class: `whisker ${tone}` }));
  group.append(symbol(shape, x(at), y, tone));
  const words = isKnown(se) ? `${number(at)} ± ${number(se)}${unit}` : read(at);
  return [mark(group, [client.name, `${short ?? label}: ${words}`])];
}
