// Times to an event: in what order people are told apart, and every client's curves beside those that were seen.

const times = report.survival ?? null;
const timeUnit = times?.unit ? ` ${times.unit}` : "";
const SURVIVAL_MODELS = {
  personal: "with each client’s own model",
  shared: "the shared model",
  pooled: "pooled training",
  guess: "one curve for everybody",
};
const MOST_TIMES = 12; // clients whose curves are drawn, those with the most people first

/** In place of typical errors: what the model in use comes to, in words that need no statistics. */
function wellByTimes() {
  const used = times.models.personal ?? times.models.shared;
  const guess = times.models.guess;
  const whose = times.held_out ? `${times.whose} that training never saw` : `${times.whose} of training, which flatters it`;
  const words = [`Of ${count(used.rows)} ${whose}, ${count(used.events)} of them with “${times.event}”: `];
  if (isKnown(used.concordance))
    words.push(
      "of two, the one whom the model finds at higher risk has it first in ",
      make("strong", { class: "big", id: "well-value", "data-value": used.concordance }, `${Math.round(100 * used.concordance)} of 100 pairs`),
      " (50 by chance).",
    );
  else words.push("too few to say who is first.");
  if (isKnown(used.brier) && isKnown(guess?.brier)) {
    const less = 1 - used.brier / guess.brier;
    words.push(less < 0.005 ? " Its curves are no closer to what was seen than one curve for everybody." : ` Its curves are ${Math.round(100 * less)}% closer to what was seen than one curve for everybody (integrated Brier score).`);
  }
  element("well-words").replaceChildren(...words);
  element("well-figure").remove();
}

function survival() {
  const names = Object.keys(times.clients).sort((a, b) => times.clients[b].rows - times.clients[a].rows);
  const shown = names.slice(0, MOST_TIMES);
  const whose = times.held_out ? `${times.whose} that training never saw` : `the ${times.whose} of training, which flatters it`;
  element("survival-words").textContent =
    `How many are still without “${times.event}” at a time${times.unit ? `, in ${times.unit}` : ""}: as the model in use predicts it on average, and as it was ` +
    `seen (by Kaplan and Meier, in which people count for as long as they were watched), of ${whose}. Where few were watched, what was seen says little.` +
    (names.length > shown.length ? ` Drawn are the ${count(shown.length)} clients with the most people; the table has all.` : "");
  element("survival-legend").replaceChildren(
    ...[
      { shape: "line", tone: "blue", label: "Predicted" },
      { shape: "circle", tone: "orange", label: "Seen" },
    ].map(legendEntry),
  );
  element("survival-curves").replaceChildren(...shown.map(survivalMultiple));
  drawMultiples();
  const of = (part) => (row) => row.of[part];
  const rows = [
    ...Object.keys(SURVIVAL_MODELS).filter((name) => times.models[name]).map((name) => ({ name: `All, ${SURVIVAL_MODELS[name]}`, of: times.models[name] })),
    ...names.map((name) => ({ name, of: times.clients[name] })),
  ];
  const columns = [
    { label: "Client", words: true, value: (row) => row.name },
    { label: times.whose === "people" ? "People" : "Rows", value: of("rows"), format: () => count },
    { label: "With the event", value: of("events"), format: () => count },
    { label: "Pairs in the right order", value: of("concordance"), format: () => (v) => (isKnown(v) ? tenths(v) : "–") },
    { label: "Integrated Brier score", value: of("brier"), format: () => (v) => (isKnown(v) ? v.toFixed(3) : "–") },
  ];
  const caption = "Of pairs more is better (half by chance), of the Brier score less. Press a heading to sort by it.";
  sortableTable(element("survival-table"), "survival-caption", caption, columns, rows, { column: 1, up: false });
}

function survivalMultiple(name) {
  const plot = make("div", { class: "plot" });
  const { predicted, observed, rows } = times.clients[name];
  const end = times.ends.at(-1);
  const caption = `${name}: at ${number(end)}${timeUnit} ${tenths(predicted.at(-1))} are predicted to be without it.`;
  drawn.set(plot, () => {
    const width = onPaper ? 390 : Math.max(plot.clientWidth, 220);
    const svg = survivalChart(width, name, predicted, observed);
    build(svg, { role: "group", "aria-label": `Picture. ${caption}` }, []);
    walkWithArrows(svg);
    plot.replaceChildren(svg);
  });
  return make("figure", {}, make("h3", {}, name, make("span", {}, ` ${rows === 1 ? "1 person" : `${count(rows)} ${times.whose}`}`)), plot);
}

function survivalChart(width, name, predicted, observed) {
  const bottom = 150;
  const left = 12 + widthOf("100%");
  const y = linearScale(0, 1, bottom, 8, 36);
  const x = linearScale(0, times.ends.at(-1), left + 4, width - 12);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${bottom + 26}`, class: "chart" });
  for (const t of y.ticks) {
    svg.append(
      draw("line", { x1: left, x2: width - 6, y1: y(t), y2: y(t), class: "grid" }),
      draw("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "tick" }, percent(t)),
    );
  }
  svg.append(...x.ticks.map((t) => draw("text", { x: x(t), y: bottom + 18, "text-anchor": "middle", class: "tick" }, number(t))));
  const points = [`${x(0)},${y(1)}`, ...times.ends.map((t, j) => `${x(t)},${y(predicted[j])}`)].join(" ");
  svg.append(draw("polyline", { points, class: "line blue", "pointer-events": "none" }));
  times.ends.forEach((t, j) => {
    const said = [`${name}, at ${number(t)}${timeUnit}`, `Predicted ${tenths(predicted[j])}`];
    if (!isKnown(observed[j])) return;
    svg.append(mark(symbol("circle", x(t), y(observed[j]), "orange"), [...said, `Seen ${tenths(observed[j])}`]));
  });
  return svg;
}
