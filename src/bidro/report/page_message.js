// The first screen: what the model predicts and for whom, how well, and what is promised, in words and units
// that people have. What is exact stands further down, and is linked.

const plainly = report.plainly ?? null;
const areRight = plainly?.measure === "right";
/** A typical error, or a share of right predictions. */
const plain = (value) => (!isKnown(value) ? "–" : areRight ? tenths(value) : threeDigits(value));
const threeDigits = (value) => minus(new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3 }).format(value));

/** Of a client whose loss is released with noise as large as it is: what its typical error is less than. */
// `untold` is the name in earlier report.json files, which `bidro report` still reads.
const hiddenByNoise = plainly?.hidden_by_noise ?? plainly?.untold ?? {};
const UNTOLD = "Where it says “less than”, the noise that protects the held-out rows does not allow more to be said: there are too few of them.";

function concerns() {
  const given = report.concerns ?? [];
  element("concerns").hidden = given.length === 0;
  element("concerns")
    .querySelector("ul")
    .replaceChildren(...given.map((words) => make("li", {}, words)));
}

const MOST_NAMED = 8;

function lead() {
  const few = report.periods ? ` happens, in periods until ${number(report.periods.at(-1))}${counted},` : report.classes ? ` (${listed(report.classes, "or")})` : "";
  const names = clients.map((c) => c.name);
  const whose = names.length <= MOST_NAMED ? `: ${listed(names)}` : "";
  const how = trained ? ` from ${plural(report.features.length, "feature")}` : ", trained elsewhere,";
  const noisy = report.chosen?.privacy ? "about " : "";
  const rowsAre = report.periods ? " (each a period of a person)" : "";
  const seen = trained
    ? judged
      ? ` Trained on ${noisy}${plural(report.rows, "row")}${rowsAre}, and judged on ${plural(report.held_out_rows, "other row")} that ${report.procedure ? "this training never saw; the model here was then trained on all of them" : "training never saw"}.`
      : ` Trained on ${noisy}${plural(report.rows, "row")}${rowsAre}; no rows were held out to judge it by.`
    : ` Judged on ${plural(report.held_out_rows, "row")}.`;
  element("lead").replaceChildren(
    report.periods ? "A model that predicts when " : "A model that predicts ",
    make("strong", {}, report.target),
    `${few}${how} for `,
    make("strong", {}, plural(clients.length, "client")),
    ` (column ${report.client_column})${whose}.${seen} ${longDate(report.created)}.`,
  );
}

// ---- how well

const GUESSES = { mean: "the mean", median: "the median", quantile: "the same quantile" };

function guessWords() {
  const { kind, value } = plainly.guess;
  return kind === "class" ? `always guessing “${value}”` : `always guessing ${GUESSES[kind]} (${threeDigits(value)}${counted})`;
}

/** [what it is called, its value, tone, shape], the models in use first. */
function plainModels() {
  const { models } = plainly;
  const same = report.robustness_cost?.pooled;
  const robust = plainly.robust_in_use && !same;
  const shared = same ? "Shared model (= pooled training)" : robust ? "Shared model (the most robust one)" : "Shared model";
  const all = [
    ["personal", "With personal models", "sky"],
    ["shared", trained ? shared : "This model", "blue"],
    ...(robust ? [] : [["robust", "Robust to any mix (not in use)", "green"]]),
    ...(same ? [] : [["pooled", "Pooled training", "orange"]]),
    ["guess", plainly.guess?.kind === "class" ? `Always “${plainly.guess.value}”` : `Always ${GUESSES[plainly.guess?.kind]}`, "grey"],
  ];
  return all.filter(([name]) => isKnown(models[name])).map(([name, label, tone]) => {
    const worst = clients.length > 1 ? worstTenth(clients.map((c) => plainly.clients[c.name][name])) : null;
    return { name, label, tone, value: models[name], worst };
  });
}

function well() {
  if (times) return wellByTimes();
  if (!plainly) return wellByLoss();
  const shown = plainModels();
  const inUse = shown[0].value;
  const big = make("strong", { class: "big", id: "well-value", "data-value": inUse }, plain(inUse));
  const where = judged ? "" : " on the rows of training, which flatters it";
  const rare = plainly.rare ?? null;
  const people = plainly.of_people ? " as a mean of people" : "";
  element("well-words").replaceChildren(
    ...(rare ? rareWords(rare) : []),
    ...(areRight
      ? [big, ` of predictions are right${people}${where}`]
      : ["Predictions are typically off by ", big, `${offBy}${people}${where}`]),
    againstGuess(inUse),
  );
  element("well-words").append(ends(shown[0].name));
  const worst = clients.length > 1 ? ` The line is the ${clients.length > 10 ? "worst tenth of the clients" : "worst client"}.` : "";
  const caption =
    (areRight ? "Right predictions, longer is better." : `Typical error in ${measure}, shorter is better: ${plainly.words}.`) +
    worst +
    (plainly.guess_held_out === false && judged ? " The guess is evaluated on training rows: sites do not send more." : "");
  const most = Math.max(...shown.flatMap((m) => known([m.value, m.worst])));
  figure("well-figure", caption, (width) => wellChart(width, shown, areRight ? 1 : most));
}

/** Of a rare class first how well it is told from the other: nearly every prediction is right that never says it. */
function rareWords({ class: name, share, area, lift, pooled_area: pooled }) {
  const than = isKnown(pooled) ? ` (pooled training: ${Math.round(100 * pooled)})` : "";
  return [
    `“${name}” is rare (${tenths(share)} of the rows). Of a row of it and a row that is not, the model ranks the former higher `,
    make("strong", { class: "big", id: "rare-area" }, `${Math.round(100 * area)} times in 100`),
    `${than}; in the tenth that it ranks highest “${name}” is ${threeDigits(lift)} times as frequent as among all. `,
  ];
}

/** The clients that it does best and worst for, of those whose losses noise does not hide. */
function ends(which) {
  const visible = clients.filter((c) => !(c.name in hiddenByNoise));
  const each = visible.map((c) => [c.name, plainly.clients[c.name][which]]).sort((a, b) => a[1] - b[1]);
  const some = visible.length < clients.length ? ` For ${plural(clients.length - visible.length, "client")} the noise does not allow it to be said.` : "";
  if (each.length < 2) return some;
  const [[least, low], [most, high]] = areRight ? [each.at(-1), each[0]] : [each[0], each.at(-1)];
  return ` It does best for ${least} (${plain(low)}) and worst for ${most} (${plain(high)}).${some}`;
}

/** What the model is worth compared with one guess for everybody. */
function againstGuess(inUse) {
  const guess = plainly.models.guess;
  if (!isKnown(guess)) return ".";
  const better = areRight ? inUse - guess : 1 - inUse / guess;
  if (better < 0.005) return `: no better than ${guessWords()}.`;
  if (areRight) return `, against ${tenths(guess)} by ${guessWords()}.`;
  return `; ${guessWords()} is off by ${plain(guess)}${offBy}.`;
}

/** The mean over the worst tenth of some clients' typical errors, or shares of right predictions. */
function worstTenth(values) {
  const sorted = [...values].sort((a, b) => (areRight ? a - b : b - a)).slice(0, Math.ceil(values.length / 10));
  return sorted.reduce((sum, v) => sum + v, 0) / sorted.length;
}

function wellByLoss() {
  element("well-words").textContent = report.overall
    ? `The mean ${report.loss.name} is ${number(report.overall.mean)} (lower is better).`
    : "Nothing is known of it.";
  element("well-figure").remove();
}

function wellChart(width, shown, most) {
  const each = 40;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${shown.length * each + 2}`, class: "chart" });
  const room = width - 2;
  const x = (v) => 1 + (most > 0 ? v / most : 0) * (room - 1);
  shown.forEach((model, i) => {
    const y = i * each;
    const said = areRight ? `${plain(model.value)} right` : `Typically off by ${plain(model.value)}${offBy}`;
    const worst = isKnown(model.worst) ? `${clients.length > 10 ? "worst tenth" : "worst"} ${plain(model.worst)}` : "";
    const numbers = [plain(model.value), worst].filter(Boolean).join(", ");
    svg.append(
      draw("text", { x: 0, y: y + 13, class: i ? "aside" : "tagged" }, fitted(model.label, width - widthOf(numbers) * 1.2 - 12)),
      draw("text", { x: width - 1, y: y + 13, "text-anchor": "end", class: i ? "" : "tagged", "data-model": model.name }, numbers),
      bar(x, 0, model.value, y + 27, 13, model.tone, [model.label, said, worst].filter(Boolean)),
    );
    if (worst) svg.append(draw("line", { x1: x(model.worst), x2: x(model.worst), y1: y + 18, y2: y + 36, class: "worst" }));
  });
  return svg;
}

// ---- what is private

/** Where rows went; of a fit with privacy budgets to whom what is promised, and what the noise costs. */
function privately() {
  const { privacy, noise } = report.chosen ?? {};
  const here = report.federated ? "Rows stayed at their sites; what each of them sent is below." : "All rows were read on one machine, and nothing was sent.";
  const few = "Numbers of a client with few rows can tell what these hold.";
  element("private").hidden = !trained;
  element("private").classList.toggle("on-screen", !privacy);
  element("private-words").textContent = [here, privacy].filter(Boolean).join(" ");
  element("private-note").textContent = noise ?? few;
}

// ---- what is promised

function promised() {
  followers.push(() => {
    const found = here().plainly;
    const [words, note] = here().of_rows ? rowsPromise(here().of_rows) : found ? plainPromise(found) : otherPromise();
    element("promised-words").replaceChildren(...words);
    element("promised-note").textContent = note;
  });
}

/** Words with the amount that leads, and what is assumed; small where one guess for everybody is promised as much. */
function rowsPromise({ words, amount, bound, useless, promise }) {
  const assumed = promise.slice(promise.indexOf("It assumes"));
  if (amount === null) return [[words], assumed];
  const at = words.indexOf(amount);
  const big = make("strong", { class: useless ? "" : "big", id: "promised-value", "data-value": bound }, amount);
  return [[words.slice(0, at), big, words.slice(at + amount.length)], assumed];
}

/** Words, and what to know of them. A bound that one guess for everybody keeps as well promises nothing of use. */
function plainPromise({ of, bound, largest, shortage, binding, rows, enough, people: byPeople, over_rows: overRows }) {
  const level = `With ${levelWords()} confidence`;
  const draws = byPeople ? "people" : "rows";
  if (shortage) return [[make("strong", {}, `Too few ${draws} to promise anything`), ` with ${levelWords()} confidence: ${shortage}.`], ""];
  // The bound is for any mixture, and so is what it is held against: the client for which the guess is worst.
  const guesses = known(clients.map((c) => plainOf(c, "guess")));
  const guess = areRight ? Math.min(...guesses) : Math.max(...guesses);
  const useless = guesses.length > 0 && (areRight ? bound < guess : bound > guess);
  const size = useless ? "" : "big";
  const big = make("strong", { class: size, id: "promised-value", "data-value": bound }, plain(bound));
  const people = byPeople ? " as a mean of people," : "";
  const whom = `${people} for ${report.mixtures}${of.startsWith("personal") ? ", each using its personal model" : ""}.`;
  const words = areRight
    ? [`${level}, at least `, big, ` of predictions are right,${whom}`]
    : [`${level}, predictions are typically off by at most `, big, `${counted},${whom}`];
  const cut = isKnown(largest) ? ` An error counts as at most ${plain(largest)}${counted}.` : "";
  const set = ` The bound is set by ${binding}, with ${byPeople ? people1(rows) : plural(rows, "row")} held out`;
  if (useless) {
    const few = make("strong", {}, `Too few ${draws} to promise anything of use.`);
    const more = enough > rows ? `; ${count(enough)} with the same mean loss would bring it half way to that loss.` : "; more lower it.";
    const reached = `${sentence(guessWords())} came to ${plain(guess)}${areRight ? "" : counted} where it is worst.`;
    return [[few, " ", ...words], `${reached}${set}${more}${ofRows(byPeople, overRows)}`];
  }
  return [words, `For new ${draws} like those held out, whichever client they come from.${cut}${set}.${ofRows(byPeople, overRows)}`];
}

const people1 = (number) => (number === 1 ? "1 person" : `${count(number)} people`);

/** Beside what is promised of a mean of people: the mean of rows, in which people with many rows count for more. */
function ofRows(byPeople, overRows) {
  if (!byPeople) return "";
  if (!overRows) return " As a mean of rows it is not reported: people with many rows count for more in that.";
  const of = (value) => (areRight ? `${plain(value)} right` : `${plain(value)}${counted}`);
  const seen = `was ${of(overRows.observed)} where it is worst`;
  if (!isKnown(overRows.bound))
    return ` As a mean of rows, in which people with many rows count for more, it ${seen}; that is observed and not bounded.`;
  return ` As a mean of rows, in which people with many rows count for more, it is at ${areRight ? "least" : "most"} ${of(overRows.bound)}, and ${seen}.`;
}

/** Of losses that people have no unit for. */
function otherPromise() {
  if (Object.keys(here().too_few ?? {}).length)
    return [[make("strong", {}, "Too few rows to promise anything"), ` with ${levelWords()} confidence.`], "How many would do is below."];
  const stated = Object.keys(STATEMENTS).some((name) => here()[name]);
  const of = report.periods ? " of a person’s periods" : "";
  if (stated) return [[`With ${levelWords()} confidence the mean loss${of} is bounded for ${report.mixtures}.`], ""];
  return [[`Nothing is promised of new rows: ${why(trained ? "clipped" : "held_out")}`], ""];
}
