// A run across machines: who took part, what left each site, and how much the model rests on it.

function federated() {
  const found = report.federated;
  if (!found) return element("federated").remove();
  const sites = clients.map((c) => c.name);
  const sum = (field) => found.left.reduce((all, kind) => all + kind[field], 0);
  const lost = Object.entries(found.lost);
  const named = clients.slice(0, MOST_NAMED).map((c) => `${c.name} (${plural(c.rows + c.held_out_rows, "row")})`);
  const more = sites.length > named.length ? ` and ${count(sites.length - named.length)} more` : "";
  const fewest = Math.min(...found.left.map((kind) => kind.fewest_rows));
  const words = [
    `${plural(sites.length, "site")} took part, in ${plural(found.rounds, "round")}: ${more ? named.join(", ") : listed(named)}${more}.`,
    `What left them are ${count(sum("numbers"))} numbers in ${plural(sum("messages"), "message")}, ${bytes(sum("bytes"))} in all,`,
    `each computed from at least ${plural(fewest, "row")}.`,
    ...lost.map(([name, reason]) => `${name} was lost (${reason}): nothing here covers it.`),
    ...found.refused.map(({ site, why: reason }) => `A reply of ${site} was not accepted: ${reason}`),
  ];
  element("federated-words").textContent = words.join(" ");
  const caption =
    "What each site sent: bytes as bars, all on one scale, and how many numbers they hold. The table has the bytes.";
  figure("left-figure", caption, (width) => leftChart(width, found.left, sites));
  leftTable(found.left);
}

function bytes(value) {
  if (value < 1000) return `${count(value)} bytes`;
  const [size, name] = value < 1e6 ? [value / 1e3, "kB"] : [value / 1e6, "MB"];
  return `${threeDigits(size)} ${name}`;
}

/** A bar for each site and kind; on narrow screens the kinds stand below one another. */
function leftChart(width, left, sites) {
  const shown = sites.slice(0, mostRows());
  const names = Math.min(0.28 * width, 8 + Math.max(...shown.map(widthOf)));
  const perLine = Math.max(1, Math.min(left.length, Math.floor((width - names) / 108)));
  const wide = (width - names) / perLine;
  const each = 34;
  const most = Math.max(1, ...left.flatMap((kind) => shown.map((name) => kind.sites[name]?.bytes ?? 0)));
  const lines = Math.ceil(left.length / perLine);
  const high = 40 + shown.length * each;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${lines * high}`, class: "chart" });
  left.forEach((kind, k) => {
    const top = Math.floor(k / perLine) * high;
    const begin = names + (k % perLine) * wide + 8;
    const [one, two] = inTwoLines(kind.what, wide - 10);
    svg.append(draw("text", { x: begin, y: top + 14, class: "tagged" }, one), draw("text", { x: begin, y: top + 30, class: "tagged" }, two));
    shown.forEach((name, i) => {
      const y = top + 40 + i * each;
      if (k % perLine === 0) svg.append(draw("text", { x: 0, y: y + 16, class: "name" }, fitted(name, names - 8)));
      const sent = kind.sites[name];
      if (!sent) return svg.append(draw("text", { x: begin, y: y + 16, class: "aside" }, "nothing"));
      const words = [`${name}: ${kind.what}`, `${bytes(sent.bytes)}, ${count(sent.numbers)} numbers in ${plural(sent.messages, "message")}`];
      const x = (v) => begin + (v / most) * (wide - 26);
      svg.append(
        bar(x, 0, sent.bytes, y + 5, 9, "blue", words),
        draw("text", { x: begin, y: y + 23, class: "aside" }, fitted(plural(sent.numbers, "number"), wide - 12)),
      );
    });
  });
  return svg;
}

function inTwoLines(words, room) {
  if (widthOf(words) * 1.15 <= room) return ["", words];
  const parts = words.split(" ");
  let cut = parts.length - 1;
  while (cut > 1 && widthOf(parts.slice(0, cut).join(" ")) * 1.15 > room) cut -= 1;
  return [parts.slice(0, cut).join(" "), fitted(parts.slice(cut).join(" "), room / 1.15)];
}

function leftTable(left) {
  const columns = [
    { label: "What", words: true, value: (kind) => kind.what },
    { label: "Messages", value: (kind) => kind.messages, format: () => count },
    { label: "Numbers", value: (kind) => kind.numbers, format: () => count },
    { label: "Bytes", value: (kind) => kind.bytes, format: () => count },
    { label: "Rows behind a number", value: (kind) => kind.fewest_rows, format: () => count },
    { label: "What it reveals", value: (kind) => kind.reveals, format: () => String, classes: "words" },
  ];
  const caption = "All that left the sites, in all. Of each number, the fewest rows that it is computed from.";
  sortableTable(element("left"), "left-caption", caption, columns, left, { column: 3, up: false });
}

// ---- what would be without each site

function influence() {
  const found = report.influence;
  if (!found) return element("rests").remove();
  element("influence-words").textContent = found.words;
  if (found.sites.length === 0) return element("influence").parentElement.remove();
  const who = (names) => (names.length ? listed(names) : "nobody");
  const columns = [
    { label: "Without", words: true, value: (one) => one.site },
    { label: "Its weight", value: (one) => one.weight, format: () => tenths },
    { label: "Predictions move by", value: (one) => one.moved, format: () => number },
    { label: "Better off", value: (one) => who(one.gain), format: () => String, classes: "words" },
    { label: "Worse off", value: (one) => who(one.lose), format: () => String, classes: "words" },
  ];
  sortableTable(element("influence"), "influence-caption", "What would change without a site.", columns, found.sites, { column: 2, up: false });
}
