// The clients side by side: under pooled training, the shared model and their personal ones.

const plainOf = (client, which) => (which === "shared" ? hiddenByNoise[client.name] : null) ?? plainly?.clients?.[client.name]?.[which] ?? null;

/** What is inOrder and listed of each client: typical errors or shares of right predictions, else losses. */
function sideBySide() {
  const same = report.robustness_cost?.pooled;
  const of = (which, field) => (plainly ? (c) => plainOf(c, which) : field);
  const all = [
    {
      ...MARKED.pooled,
      label: same ? "Pooled training, which is the shared model" : "Pooled training",
      short: "Pooled training",
      value: of("pooled", (c) => c.pooled),
    },
    ...(same
      ? []
      : [{
          label: trained ? "Shared model" : "This model",
          shape: "diamond",
          tone: "blue",
          value: of("shared", (c) => c.loss),
          before: (c) => (c.name in hiddenByNoise ? "less than " : ""),
        }]),
    { label: "Personal model", shape: "down", tone: "sky", value: (c) => (c.has_personal ? of("personal", (o) => o.personal)(c) : null) },
    { label: guessLabel(), shape: "circle", tone: "grey", value: of("guess", () => null) },
  ];
  return all.filter((s) => clients.some((c) => isKnown(s.value(c))));
}

// All use one model, which is what there would be to compare with.
const nobodyMoves = Boolean(report.robustness_cost?.pooled) && !somePersonal;

const guessLabel = () =>
  plainly?.guess?.kind === "class" ? `Always “${plainly.guess.value}”` : `Always ${GUESSES[plainly?.guess?.kind]}`;

function gains() {
  const series = sideBySide();
  if (series.length === 0) {
    element("gains-words").hidden = true;
    element("plain-scroll").remove();
    const reason = report.held_out_rows > 0 ? why("pooled") : why("held_out");
    return absentFigure("gains-figure", `Not shown: ${reason}`);
  }
  element("gains-words").textContent = gainsWords();
  const change = (c) => (comparable && !nobodyMoves ? c.personal_change.mean / c.pooled : -byLoss(c));
  const ordered = [...clients].sort((a, b) => change(a) - change(b));
  const caption = () => {
    const shown = shownOf();
    const half = shown.length / 2;
    const gaining = comparable && !nobodyMoves;
    const first = gaining ? "those that gain most first" : "the highest loss first";
    const which =
      shown.length === clients.length
        ? `All clients, ${first}.`
        : gaining
          ? `The ${half} clients that gain most and the ${half} that gain least or lose, of ${count(clients.length)}.`
          : `The first ${shown.length} of ${count(clients.length)} clients, ${first}.`;
    const right = gaining
      ? " On the right the change of the mean loss against pooled training, ± one standard error; “gains” and “loses” where it is more than two."
      : "";
    return which + right + (Object.keys(hiddenByNoise).length ? ` ${UNTOLD}` : "");
  };
  const shownOf = () => {
    if (ordered.length <= mostRows()) return ordered;
    const half = mostRows() / 2;
    return comparable && !nobodyMoves ? [...ordered.slice(0, half), ...ordered.slice(-half)] : ordered.slice(0, mostRows());
  };
  const inOrder = [series.at(-1), ...series.slice(0, -1)]; // the guess is behind the others
  const row = (c) => ({
    name: c.name,
    tag: c.verdict ? `(${c.verdict})` : "",
    note: nobodyMoves ? undefined : comparable ? changeWords(c) : c.name in hiddenByNoise ? `less than ${plain(hiddenByNoise[c.name])}` : undefined,
    marks: (x, y) => [guide(x, y), ...inOrder.filter((s) => isKnown(s.value(c))).flatMap((s) => dot(c, s, x, y, plainly ? plain : loss))],
  });
  const values = series.flatMap((s) => clients.map(s.value));
  const scale = areRight ? shareScale(values) : lossScale(values);
  const label = !plainly ? lossLabel : areRight ? "Right predictions" : (x) => `Typical error in ${measure}${x.logarithmic ? " (log scale)" : ""}`;
  const chart = (width) =>
    rowsChart(width, shownOf().map(row), { scale, label, height: onPaper ? 22 : 28, tick: areRight ? tenths : number });
  figure("gains-figure", caption, chart, series);
  plainTable(series);
}

/** Of shares: not from zero, as all may be near one. */
function shareScale(values) {
  const given = known(values);
  const [low, high] = [Math.min(...given), Math.max(...given)];
  const room = Math.max(0.02, 0.1 * (high - low));
  return (from, to) => linearScale(Math.max(0, low - room), Math.min(1, high + room), from, to);
}

const changeWords = ({ personal_change: { mean, se }, pooled }) =>
  signed(mean / pooled) + (isKnown(se) ? ` ± ${(100 * (se / pooled)).toFixed(1)}%` : "");

function gainsWords() {
  const words = [];
  const { pooled, personal } = report.overall ?? {};
  if (nobodyMoves) words.push("The shared model is that of pooled training, and no client has a personal one: nobody gains or loses by it.");
  else if (comparable && pooled) {
    const after = personal ?? report.overall;
    const change = (field) => signed(after[field] / pooled[field] - 1);
    const counted = (verdict) => count(clients.filter((c) => c.verdict === verdict).length);
    words.push(
      `Against pooled training, with every client using ${somePersonal ? "its personal model where it has one" : "the shared model"},`,
      `the mean loss on held-out rows changes by ${change("mean")}, that of the worst tenth of the clients by ${change("worst_decile")}.`,
      `Of ${plural(clients.length, "client")}, ${counted("gains")} clearly gain and ${counted("loses")} clearly`,
      "lose (by more than two standard errors).",
    );
  } else if (trained) words.push(`There is nothing to compare with: ${report.held_out_rows > 0 ? why("pooled") : why("held_out")}`);
  if (isKnown(report.varies) && !report.robustness_cost?.pooled) {
    const share = `${Math.round(100 * report.varies)}%`;
    words.push(`The shared model's predictions vary ${share} as much as those of pooled training.`);
  }
  return words.join(" ");
}

function plainTable(series) {
  if (!plainly) return element("plain-scroll").remove();
  const format = areRight ? () => tenths : undefined;
  const columns = [
    { label: "Client", words: true, value: (c) => c.name },
    { label: judged ? "Held-out rows" : "Rows", value: (c) => (judged ? c.held_out_rows : c.rows), format: () => count },
    ...series.map((s) => ({ label: s.short ?? s.label, value: s.value, before: s.before, format, classes: `plain-${s.shape}` })),
  ];
  const what = areRight ? "Shares of right predictions" : `Typical errors in ${measure}`;
  const all = clients.length > TALL ? ` of all ${count(clients.length)} clients; the table scrolls` : "";
  sortableTable(element("plain"), "plain-caption", `${what}${all}. Press a heading to sort by it.`, columns, clients, {
    column: 2,
    up: areRight,
  });
}
