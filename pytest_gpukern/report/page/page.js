// Shows the runs of a report: an overview with the table of cases, or one case.
//
// The data comes from a file that anybody may have written. So text enters the page as text nodes only, and
// every link leads to a place in this page. Python writes words and figures; this script sorts, filters and
// draws, and formats only what stands on an axis or under the pointer.
"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const FIRST = 300; // rows that are drawn before more are asked for
  const FEW = 10; // failures and series, likewise
  const MEANINGS = new Map(DATA.columns);
  const TONES = new Map([...Object.entries(DATA.tones), ["PASSED", "good"]]); // finding kinds have none
  const main = document.querySelector("main");

  // --- elements and numbers ------------------------------------------------------------------------

  const el = (name, options, ...children) => filled(document.createElement(name), options, children);
  const svg = (name, options, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", name), options, children);

  function filled(made, options = {}, children = []) {
    for (const [key, value] of Object.entries(options)) {
      if (key === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
      else if (known(value) && value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter(Boolean));
    return made;
  }

  // A table crosses as the names of its columns and the values of each row.
  const records = ({ names, rows }) => rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])));

  DATA.trends = records(DATA.trends);

  const digits = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

  const ofThree = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3)); // as Python writes times

  function scaled(value, units, written = digits) {
    const [scale, unit] = units.findLast((each) => Math.abs(value) >= each[0] * 0.9995) || units[0];
    return `${written(value / scale)} ${unit}`;
  }

  const asTime = (ns) => scaled(ns, DATA.units.time, ofThree);
  const asRate = (flops) => scaled(flops, DATA.units.rate);
  const asSize = (value) => scaled(value, [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"]]).replace(" ", "");

  function asChange(ratio) {
    const percent = Number((100 * (ratio - 1)).toFixed(2));
    return `${percent > 0 ? "+" : percent < 0 ? "−" : ""}${digits(Math.abs(percent))} %`;
  }

  const known = (value) => value !== null && value !== undefined;
  const positive = (value) => known(value) && value > 0;
  const counts = (row) => positive(row.ns) && !DATA.barred.includes(row.state);
  const tone = (state) => TONES.get(state) || "faint";
  const badge = (state, more = "") => (state ? el("span", { class: `badge ${tone(state)} ${more}` }, state === "tail" ? "slow calls" : state) : "");

  // Lets a long name break behind its dots and underscores, or behind its parts alone.
  const breakable = (name, behind = /(?<=[._])/) => name.split(behind).flatMap((part) => [part, el("wbr")]);
  const named = (name) => breakable(name, /(?<=[/,])/);
  const spoken = (scope) => scope.replaceAll("_", " ");

  // Returns a column's heading, which shows its meaning under the pointer. A click leads to the list of all.
  function titled(title, meaning = title) {
    const click = (event) => {
      event.preventDefault();
      const list = document.getElementById("meanings");
      list.open = true;
      list.scrollIntoView();
      list.firstChild.focus({ preventScroll: true });
    };
    const text = MEANINGS.get(meaning);
    return text ? el("a", { href: "#meanings", class: "meaning", title: text, on: { click } }, title) : title;
  }

  const meanings = () => Object.assign(folded("What the columns mean", false, (body) => body.append(facts(DATA.columns))), { id: "meanings" });

  // Shows what is in it once it is opened: a roofline needs a width, and thousands of figures time.
  function folded(title, open, fill) {
    const body = el("div");
    const toggle = () => {
      if (box.open && !body.hasChildNodes()) fill(body);
    };
    const box = el("details", { open, on: { toggle } }, el("summary", {}, title), body);
    return box;
  }

  // Returns a table without its empty columns. A column is a name, or a name and whether it is numeric.
  function tableOf(columns, rows, kind) {
    const names = columns.map((column) => [column].flat());
    const kept = names.map((_, i) => i).filter((i) => rows.some((row) => known(row[i]) && row[i] !== ""));
    const cells = (tag, row) =>
      kept.map((i) => el(row[i] === "" ? "td" : tag, { class: names[i][1] && "number", "data-title": names[i][0] }, row[i] ?? ""));
    const titles = names.map(([name]) => name);
    const body = rows.map((row) => el("tr", {}, ...cells("td", row)));
    return scrolled(titles.filter(Boolean).join(", "), { class: kind }, cells("th", titles.map((title) => titled(title))), body);
  }

  // Returns a table of rows in a box that scrolls, which the keyboard reaches.
  function scrolled(label, options, head, rows) {
    const table = el("table", options, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
    return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": label }, table);
  }

  const section = (title, ...children) => el("section", {}, el("h2", {}, title), ...children);
  const listOf = (texts) => el("ul", {}, ...texts.map((text) => el("li", {}, text)));

  // --- drawings ------------------------------------------------------------------------------------

  const SHAPES = {
    circle: "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    square: "M-4-4H4V4H-4Z",
    triangle: "M0-6L5.5 4H-5.5Z",
    diamond: "M0-6L6 0L0 6L-6 0Z",
  };
  const FORMS = Object.keys(SHAPES);
  const COLOURS = 8;

  // Tells a backend by colour and shape, the same in every picture; a colour means nothing else.
  function lookOfBackend(run, backend) {
    const i = run.backends.indexOf(backend);
    return { kind: `c${i % COLOURS}`, shape: FORMS[(i + Math.floor(i / COLOURS)) % FORMS.length] };
  }

  const drawing = (kind, width, height, label, ...parts) =>
    svg("svg", { class: `drawing ${kind}`, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
  const rect = (kind, x, y, width, height, text) => svg("rect", { class: kind, x, y, width, height }, text && svg("title", {}, text));
  const stroke = (kind, ...points) => svg("path", { class: kind, d: `M${points.map((point) => point.join(" ")).join("L")}` });
  const word = (text, x, y, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);

  // `text` shows under the pointer, and `open` runs on a click.
  function mark(x, y, { shape, kind, text, open }) {
    const options = { class: `mark ${kind}`, d: SHAPES[shape], transform: `translate(${x} ${y})`, on: open ? { click: open } : {} };
    return svg("path", options, text && svg("title", {}, text));
  }

  function legendOf(entries, colour = "") {
    const swatch = (entry) => svg("svg", { class: colour, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(0, 0, entry));
    return el("p", { class: "legend" }, ...entries.map(({ text, ...entry }) => el("span", {}, swatch(entry), text)));
  }

  const pictured = (title, said, ...parts) => el("figure", {}, el("figcaption", {}, title), ...parts, el("p", { class: "quiet" }, said));

  // Returns both ends of an axis in words; the upper one as a change where these are the same.
  const endsOf = (low, high) => [asTime(low), asTime(low) === asTime(high) && high > low ? asChange(high / low) : asTime(high)];

  // Returns a range around values, `part` of it free at each end.
  function around(values, part) {
    const [low, high] = extent(values.filter(known));
    const margin = (high - low) * part || Math.abs(high) * 0.01 || 1;
    return [low - margin, high + margin];
  }

  const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

  function distributionOf({ distribution: [low, high, bins, note, humps], time, ns, low_ns, high_ns, sides }) {
    const [width, left, right, top, bottom] = [420, 58, 410, 34, 146];
    const most = Math.max(...bins);
    const x = (value) => left + (Math.max(0, Math.min(1, (value - low) / (high - low || 1)))) * (right - left);
    const y = (count) => bottom - (count * (bottom - top)) / most;
    const step = (right - left) / bins.length;
    const bars = bins.map((count, i) => {
      const [from, to] = [i, i + 1].map((place) => asTime(low + ((high - low) * place) / bins.length));
      return rect("bin", left + i * step, y(count), Math.max(1, step - 1), bottom - y(count), `${from} to ${to}: ${count} samples`);
    });
    const [from, to] = [low_ns ?? ns, high_ns ?? ns].map(x);
    const [first, last] = endsOf(low, high);
    const two = humps.length && `two humps: ${humps.map(([part, middle]) => `${part} at ${asTime(middle)}`).join(", ")}`;
    const said = [`median ${time} in its 95 % interval`, two].filter(Boolean).join("; ");
    const before = sides?.[0];
    const aside = before < low ? "← " : before > high ? "→ " : "";
    const inside = (text, place, line) => word(text, Math.max(left + 50, Math.min(right - 50, place)), line, "middle");
    const title = "Distribution of the samples";
    const parts = [
      ...bars,
      known(ns) && rect("band", from, top, Math.max(1, to - from), bottom - top),
      known(ns) && stroke("middle", [x(ns), top], [x(ns), bottom]),
      known(before) && stroke("epoch", [x(before), top - 6], [x(before), bottom]),
      known(before) && inside(`${aside}recorded ${asTime(before)}`, x(before), top - 9),
      ...humps.flatMap(([part, middle]) => [stroke("level", [x(middle) - 9, top], [x(middle) + 9, top]), inside(`${part} at ${asTime(middle)}`, x(middle), 11)]),
      note && word(note, right, bottom + 32, "end"),
      stroke("grid", [left, bottom], [right, bottom]),
      word(String(most), left - 6, top + 10, "end"),
      word(first, left, bottom + 16, "start"),
      word(last, right, bottom + 16, "end"),
    ];
    return pictured(title, said, drawing("small", width, bottom + (note ? 38 : 22), `${title}: ${said}`, ...parts));
  }

  const recorded = (epoch) => typeof epoch === "number";
  const RECORDED = { kind: "recorded", shape: "circle" };
  // What sessions of a run were measured for, as Python names it.
  const ROLES = {
    measured: { text: "this run", kind: "measured", shape: "diamond" },
    confirming: { text: "sessions that confirm", kind: "hollow", shape: "square" },
    further: { text: "further sessions", kind: "hollow", shape: "triangle" },
  };

  // Draws recorded sessions of a time and those of this run, the levels that the verdict compares, and what the marks mean.
  function sessionsOf(run, { sides, threshold, limit_at: limit }, sessions, title, colour) {
    const past = sessions.filter(([, , epoch]) => recorded(epoch));
    const cards = [...new Set(past.map(([, card]) => card))];
    const named = (card) => (known(card) ? `card ${card}` : "no card named");
    const byCard = (card, i = cards.indexOf(card)) => ({ kind: i % 8 < 4 ? "recorded" : "outlined", shape: FORMS[i % 4] });
    const points = sessions.map(([moment, card, epoch, y, low, high]) => {
      const [who, marked] = recorded(epoch) ? [`epoch ${epoch + 1}`, byCard(card)] : [ROLES[epoch].text, ROLES[epoch]];
      const range = known(low) && known(high) ? `, ${asTime(low)} … ${asTime(high)}` : "";
      return { ...marked, y, low, high, epoch, day: moment, text: `${who}, ${moment}: ${asTime(y)}${range}, ${named(card)}` };
    });
    const levels = sides && past.length && past.length < points.length ? [[0, past.length - 1, sides[0]], [past.length, points.length - 1, sides[1]]] : [];
    const band = levels.length && known(limit) && [sides[0] / (1 + limit), sides[0] * (1 + limit)];
    const told = past.length && `${past.length} recorded on ${cards.length} ${cards.length === 1 ? "card" : "cards"}`;
    const opens = new Set(past.map(([, , epoch]) => epoch)).size > 1 ? "a dashed line opens an epoch" : "";
    const entries = [
      ...(cards.length > 1 ? cards.map((card) => ({ text: named(card), ...byCard(card) })) : []),
      ...Object.keys(ROLES).filter((role) => points.some(({ epoch }) => epoch === role)).map((role) => ROLES[role]),
      ...(band ? [{ text: `± ${threshold.replace("+", "")}`, kind: "band", shape: "square" }] : []),
    ];
    const said = el("p", { class: "quiet" }, [told, opens].filter(Boolean).join("; "));
    return el("div", {}, sequence(points, title, { band, levels, colour }), said, legendOf(entries, colour));
  }

  // Draws points in their order, oldest first: {y, low, high, epoch, day} and what a mark has. Levels, or else both ends,
  // are labelled, and the days of the first point, of each level and of the last point.
  function sequence(points, title, { band, levels = [], colour = "", width = 420, height = 120 } = {}) {
    const [left, right, top] = [58, width - 10, 10];
    const [low, high] = around([...points.flatMap((point) => [point.y, point.low, point.high]), ...(band || []), ...levels.map(([, , level]) => level)], 0.08);
    const x = (i) => left + ((i + 0.5) * (right - left)) / points.length;
    const y = (value) => top + ((high - value) * (height - 2 * top)) / (high - low);
    const labelled = [...new Set(levels.length ? levels.map(([, , level]) => level) : extent(points.map((point) => point.y)))].sort((a, b) => a - b);
    const texts = labelled.length === 2 ? endsOf(...labelled) : labelled.map(asTime);
    let above = Infinity; // where the label below stands
    const grid = labelled.flatMap((value, i) => {
      above = Math.min(y(value) + 4, above - 13);
      return [stroke("grid", [left, y(value)], [right, y(value)]), word(texts[i], left - 6, above, "end")];
    });
    const begins = points.flatMap(({ epoch }, i) => (i && recorded(epoch) && epoch !== points[i - 1].epoch ? [x(i - 0.5)] : []));
    const dated = [];
    for (const i of [0, ...levels.map(([from]) => from), points.length - 1]) {
      const [day, place] = [points[i].day.slice(0, 10), Math.max(left + 30, Math.min(right - 30, x(i)))];
      if (dated.every(([other, at]) => other !== day && Math.abs(at - place) > 70)) dated.push([day, place]);
    }
    return drawing(
      `small ${colour}`, width, height + 12, title,
      band && rect("band", left, y(band[1]), right - left, Math.max(y(band[0]) - y(band[1]), 1)),
      ...grid,
      ...begins.map((place) => stroke("epoch", [place, top], [place, height - top])),
      ...levels.map(([from, to, level]) => stroke("level", [x(from) - 6, y(level)], [x(to) + 6, y(level)])),
      ...points.map((point, i) => known(point.low) && known(point.high) && stroke("range", [x(i), y(point.low)], [x(i), y(point.high)])),
      ...points.map((point, i) => mark(x(i), y(point.y), point)),
      ...dated.map(([day, place]) => word(day, place, height + 8, "middle")),
    );
  }

  // Shows each case's series over sessions, those with a step first.
  function plotTrends(host, run, rows) {
    const labels = new Map(rows.map((row) => [row.label, row]));
    const all = DATA.trends.map((each) => ({ ...each, label: `${each.case} ${each.scope}` }));
    const first = ({ label, change }) => (change ? -1 : labels.get(label).rank);
    const found = all.filter(({ label }) => labels.has(label)).sort((a, b) => first(a) - first(b));
    const picture = ({ label, case: id, scope, moments, ns, levels, change }) => {
      const drawn = ns.map((y, i) => ({ y, day: moments[i], text: `${moments[i]}: ${asTime(y)}`, ...(run.name.startsWith(moments[i]) ? ROLES.measured : RECORDED) }));
      const row = labels.get(label);
      const jump = tone(row.state) !== "faint" && row.change ? `; this run: ${row.state} ${row.change}, too new to be a step` : "";
      const said = `${change || "no step"}${jump}`;
      const name = el("a", { href: linkTo(run, row.case) }, ...named(id), ` ${scope}`);
      return pictured(name, said, sequence(drawn, `${label}, ${ns.length} sessions: ${said}`, { levels, width: 300, height: 90 }));
    };
    const stepped = found.filter((each) => each.change).length;
    host.replaceChildren(
      el("p", { class: "quiet" }, `${found.length} series of recorded sessions and these runs, oldest first; ${stepped} with a step. Runs that CI kept make them longer: gpukern report RUN.json RUN.json … -o report.html`),
      ...fewFirst(found.slice(0, FIRST), (part) => el("div", { class: "trends" }, ...part.map(picture))),
    );
  }

  // Shows the first of a list, and the others on request.
  const fewFirst = (all, shown) => [
    all.length && shown(all.slice(0, FEW)),
    all.length > FEW && folded(`${all.length - FEW} more`, false, (body) => body.append(shown(all.slice(FEW)))),
  ].filter(Boolean);

  const onRoof = (row) => positive(row.intensity) && positive(row.flop_s);

  // Draws kernels by operations a byte and rate, under the ceilings. Both axes are logarithmic.
  function plotRoofline(host, run, rows) {
    const found = rows.filter(onRoof).sort((a, b) => a.intensity - b.intensity);
    if (!found.length) return host.replaceChildren(el("p", { class: "quiet" }, "No kernel with bytes and flops is left here."));
    const ceilings = run.ceilings.map(([name, kind, rate, text]) => ({ kind, rate, text: `${name} ${text}` })).filter(({ rate }) => positive(rate));
    const memory = ceilings.filter(({ kind }) => kind === "memory");
    const compute = ceilings.filter(({ kind }) => kind === "compute").sort((a, b) => b.rate - a.rate);
    const turns = memory.flatMap((m) => compute.map((c) => c.rate / m.rate));
    const range = (values, part) => around(values.map(Math.log10), part);
    const xs = range([...found.map((row) => row.intensity), ...turns], 0.1);
    const least = 10 ** xs[0];
    const tops = [...compute.map(({ rate }) => rate), ...memory.map(({ rate }) => rate * least)];
    const ys = range([...found.map((row) => row.flop_s), ...tops], 0.08);
    const [width, height] = [Math.max(host.clientWidth, 320), 400];
    const [left, right, top, bottom] = [84, width - 8, 8, height - 42];
    const x = (value) => left + ((right - left) * (Math.log10(value) - xs[0])) / (xs[1] - xs[0]);
    const y = (value) => bottom - ((bottom - top) * (Math.log10(value) - ys[0])) / (ys[1] - ys[0]);

    const labels = [];
    const taken = found.map((row) => [x(row.intensity) - 6, y(row.flop_s) - 6, x(row.intensity) + 6, y(row.flop_s) + 6]);
    const pen = document.createElement("canvas").getContext("2d"); // which knows how wide a text is
    pen.font = `12px ${getComputedStyle(host).fontFamily}`;
    // Writes a text where nothing else stands: `places` gives lower left corners for its width, the best one first.
    const label = (text, places) => {
      const long = pen.measureText(text).width;
      const boxes = places(long).map(([x0, y0]) => [x0, y0 - 13, x0 + long, y0 + 3]);
      const inside = ([x0, y0, x1, y1]) => x0 >= left && x1 <= right && y0 >= top && y1 <= bottom;
      const free = ([x0, y0, x1, y1]) => taken.every(([a, b, c, d]) => x1 < a || c < x0 || y1 < b || d < y0);
      const box = boxes.find((each) => inside(each) && free(each));
      if (box) taken.push(box);
      if (box) labels.push(word(text, box[0], box[3] - 3, "start"));
      return box; // where there is none, the marks alone tell it, under the pointer
    };
    const roofs = [
      ...compute.map(({ rate, text }) => {
        const start = Math.max(least, ...memory.map((of) => rate / of.rate));
        label(text, (long) => [0, 0.5, 1, 1.5, 2].flatMap((part) => [-4, 15].map((by) => [right - 4 - long * (1 + part), y(rate) + by])));
        return stroke("roof", [x(start), y(rate)], [right, y(rate)]);
      }),
      ...memory.map(({ rate, text }) => {
        const end = Math.min(10 ** xs[1], (compute[0]?.rate ?? 10 ** ys[1]) / rate);
        const along = [0.5, 0.35, 0.65, 0.2, 0.8, 0.95].map((part) => least * (end / least) ** part);
        label(text, (long) => [-long - 6, 8].flatMap((by) => along.map((value) => [x(value) + by, y(value * rate) + (by > 0 ? 14 : -3)])));
        return stroke("roof", [x(least), y(least * rate)], [x(end), y(end * rate)]);
      }),
    ];
    const groups = groupsOf(found);
    for (const group of groups) {
      const best = group.reduce((a, b) => (b.flop_s > a.flop_s ? b : a));
      const [at, high] = [x(best.intensity), y(best.flop_s)];
      const places = (long) => [5, 18, -10, 31, -23, 44, -36, 57].flatMap((by) => [at + 9, at - long - 9, at - long / 2].map((start) => [start, high + by]));
      [`${best.group}: ${best.variant}`, best.group].find((text) => label(text, places));
    }
    const backends = run.backends.filter((backend) => found.some((row) => row.backend === backend));
    const marks = found.map((row) => {
      const text = `${row.label}: ${asRate(row.flop_s)} at ${digits(row.intensity)} FLOP a byte${row.ceiling ? `, ${row.ceiling}` : ""}`;
      return mark(x(row.intensity), y(row.flop_s), { ...lookOfBackend(run, row.backend), text, open: () => location.assign(linkTo(run, row.case)) });
    });
    const title = "Roofline: rate by operations a byte, under the ceilings measured on this card";
    const said = `${found.length} kernels; a column is a problem at one size, a mark one variant, and its best one is named; a click opens a case`;
    const parts = [
      ...ticks(xs, right - left, 46).flatMap(([value, text]) => [stroke("grid", [x(value), text ? top : bottom - 5], [x(value), bottom]), text && word(asSize(value), x(value), bottom + 16, "middle")]),
      ...ticks(ys, bottom - top, 22).flatMap(([value, text]) => [stroke("grid", [left, y(value)], [text ? right : left + 5, y(value)]), text && word(asRate(value), left - 6, y(value) + 4, "end")]),
      word("FLOP a byte", (left + right) / 2, height - 6, "middle"),
      ...roofs,
      ...groups.map((group) => stroke("column", ...group.map((row) => [x(row.intensity), y(row.flop_s)]))),
      ...marks,
      svg("g", { class: "labels" }, ...labels),
    ];
    const legend = legendOf(backends.map((text) => ({ text, ...lookOfBackend(run, text) })));
    host.replaceChildren(pictured(title, said, legend, drawing("roofline", width, height, `${title}. ${said}`, ...parts)));
  }

  // Returns the ticks between two powers of ten, and whether there is room for a label: `least` pixels for each.
  function ticks([low, high], length, least) {
    const decade = length / (high - low);
    const labelled = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3]].find((steps) => steps.length * 1.5 * least <= decade) || [1];
    const powers = Array.from({ length: Math.ceil(high - low) + 2 }, (_, i) => Math.floor(low) + i);
    const every = Math.ceil(least / decade);
    const found = powers.flatMap((power) => [1, 2, 3, 4, 5, 6, 7, 8, 9].map((step) => [step * 10 ** power, labelled.includes(step) && power % every === 0]));
    return found.filter(([value]) => value >= 10 ** low && value <= 10 ** high);
  }

  // --- how fast the variants are -------------------------------------------------------------------

  const groupsOf = (rows) => [...Map.groupBy(rows, (row) => row.group).values()];

  const OUTLYING = 6; // times the median, beyond which a bar is cut off, since it would make the others tiny

  // Shows the variants of one problem at one size in one scope.
  function showVariants(host, run, rows) {
    const { view } = run;
    const timed = rows.filter(counts);
    const problems = [...new Set(timed.map((row) => row.problem))];
    if (!problems.length) return host.replaceChildren(el("p", { class: "quiet" }, "No time is left here."));
    const again = (changes) => {
      Object.assign(view, changes);
      showVariants(host, run, rows);
      host.querySelector(`[data-pick="${Object.keys(changes)[0]}"]`)?.focus();
    };
    const worst = timed.reduce((a, b) => (b.rank < a.rank ? b : a));
    const problem = problems.includes(view.shownProblem) ? view.shownProblem : worst.problem;
    const ofProblem = timed.filter((row) => row.problem === problem);
    const sizes = bySize(run, ofProblem);
    const chosen = sizes.find(({ rows: [{ group }] }) => group === view.shownGroup);
    const wrong = groupsOf(ofProblem).find((group) => group.some((row) => tone(row.state) === "bad"));
    const group = chosen?.rows || wrong || sizes.at(-1).rows;
    const choices = sizes.map(({ text, rows: [{ group: value }] }) => [value, text]);
    const scopes = [...new Set(group.map((row) => row.scope))].sort((a, b) => (b === "kernel") - (a === "kernel"));
    const scope = scopes.includes(view.shownScope) ? view.shownScope : scopes[0];
    host.replaceChildren(
      el(
        "div", { class: "filter no-print" },
        picked("shownProblem", "problem", problems.map((each) => [each, each]), problem, (value) => again({ shownProblem: value, shownGroup: null })),
        picked("shownGroup", "size", choices, group[0].group, (value) => again({ shownGroup: value })),
        picked("shownScope", "what is timed", scopes.map((each) => [each, spoken(each)]), scope, (value) => again({ shownScope: value })),
      ),
    );
    const [, shared] = run.shared.find(([name]) => name === problem);
    if (shared) host.append(el("p", { class: "quiet" }, `All at ${shared}.`));
    barsOf(host, run, group.filter((row) => row.scope === scope));
  }

  // Returns the rows of each size, the largest last.
  const bySize = (run, rows) =>
    groupsOf(rows).map((of) => ({ rows: of, text: run.cases[of[0].case].point || "its only size" })).sort((a, b) => collator.compare(a.text, b.text));

  // Says for each problem, at its largest size, which variants are best, how near to their limit, and where a call's time goes.
  function bestOf(run, timed) {
    const fastest = (rows, scope) => rows.filter((row) => row.scope === scope).sort((a, b) => a.ns - b.ns)[0];
    const link = (row) => row && el("a", { href: linkTo(run, row.case) }, ...breakable(`${row.variant} ${run.cases[row.case].with}`));
    const cells = (rows) => {
      const sizes = bySize(run, rows);
      const { rows: kernels } = sizes.at(-1);
      // Whole calls may be timed at other sizes than kernels. Where a GPU's are not, the host would win without a race.
      const kernel = fastest(kernels, "kernel");
      const { rows: calls, text } = sizes.findLast((size) => !kernel || size.rows.some((row) => row.spent)) || { rows: [] };
      const whole = fastest(calls, "end_to_end");
      const call = calls.find((row) => kernel?.variant === row.variant && row.scope === "end_to_end");
      const size = whole && calls !== kernels && ` at ${text}`;
      return [kernels[0].group, link(kernel), kernel?.time, kernel?.ceiling, call?.time, (call || whole)?.spent, whole && el("span", {}, link(whole), size), whole?.time];
    };
    const titles = ["problem", "fastest kernel", ["time", true], ["of limit", true], ["its whole call", true], "spent on", "fastest whole call", ["time", true]];
    return tableOf(titles, [...Map.groupBy(timed, (row) => row.problem).values()].map(cells), "best");
  }

  function picked(name, label, choices, current, pick) {
    if (choices.length < 2) return "";
    const options = choices.map(([value, text], i) => el("option", { value: i, selected: value === current }, text));
    const select = el("select", { "data-pick": name, on: { change: (event) => pick(choices[event.target.value][0]) } }, ...options);
    return el("label", {}, label, select);
  }

  // Ranks the rows of a scope at one size by time, and names the variants without a time that counts.
  function barsOf(host, run, rows) {
    const [{ group, scope }] = rows;
    const here = run.rows.filter((row) => row.group === group);
    const wrong = [...new Map(here.filter((row) => DATA.barred.includes(row.state)).map((row) => [row.case, row])).values()];
    const barred = wrong.slice(0, FEW).flatMap((row) => [el("a", { href: linkTo(run, row.case) }, ...breakable(row.variant)), " ", badge(row.state), " "]);
    if (wrong.length) host.append(el("p", { class: "quiet" }, "Without a time that counts: ", ...barred, wrong.length > FEW && `and ${wrong.length - FEW} more`));
    const ranked = [...rows].sort((a, b) => a.ns - b.ns);
    const best = Math.min(...here.filter((row) => row.scope === scope && counts(row)).map((row) => row.ns));
    const longest = OUTLYING * ranked[Math.floor((ranked.length - 1) / 2)].ns;
    const most = ranked.findLast(({ ns }) => ns <= longest).ns;
    const limits = [...new Set(ranked.map((row) => row.of_limit).filter(Boolean))];
    const against = ranked.map((row) => run.cases[row.case].against).find(Boolean);
    const line = (row) => {
      const one = run.cases[row.case];
      const bad = tone(row.state) === "bad";
      const bar = el("i", { class: `${lookOfBackend(run, row.backend).kind} ${row.ns > longest ? "far" : ""}` });
      bar.style.width = `${Math.min(100, (100 * row.ns) / most)}%`;
      const name = el("th", { scope: "row" }, el("a", { href: linkTo(run, row.case) }, ...breakable(one.variant)), " ", el("small", {}, one.with), " ", bad && badge(row.state));
      const figures = [row.time, asTimes(row.ns / best), limits.length === 1 ? row.reached : row.ceiling, ...(against ? [row.speedup] : [])];
      return el("tr", {}, name, el("td", { class: "bar" }, bar), ...figures.map((text) => el("td", { class: "number" }, text || "–")));
    };
    const limit = [`% of ${limits.length === 1 ? limits[0] : "limit"}`, "of limit"];
    const titles = [["variant"], [spoken(scope), "scope"], ["time"], ["× best"], limit, ...(against ? [[`× ${against}`, DATA.titles.speedup]] : [])];
    const head = titles.map((title, i) => el("th", { scope: "col", class: i > 1 && "number" }, titled(...title)));
    host.append(scrolled("variants", { class: "bars" }, head, ranked.map(line)));
  }

  const asTimes = (value) => (value >= 9.95 ? `${value.toFixed(0)}×` : `${value.toFixed(2)}×`);

  // --- the table of cases --------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });
  const COLUMNS = [
    { title: "verdict", text: "state", number: "rank", plain: true },
    { title: "case", text: "label" },
    { title: "change", text: "change", number: "ratio" },
    { title: DATA.titles.time, text: "time", number: "ns" },
    { title: "of limit", text: "ceiling", number: "share" },
    { title: DATA.titles.speedup, text: "speedup", number: "factor" },
    { title: DATA.titles.error, text: "error", number: "error_n" },
  ];

  const PLAIN = { text: "", state: "", backend: "", problem: "", scope: "", sort: 0, down: false };

  function prepared(run) {
    if (run.ready) return run;
    run.ready = true;
    run.cases = records(run.cases);
    run.places = new Map(run.cases.map((each, i) => [each.id, i]));
    run.rows = records(run.rows);
    for (const one of run.cases) one.scopes = [];
    for (const scope of records(run.scopes)) run.cases[scope.case].scopes.push(scope);
    const spaced = (...texts) => texts.filter(Boolean).join(" ");
    run.rows.forEach((row, place) => {
      const { id, nodeid, problem, backend, variant, point, with: settings } = run.cases[row.case];
      const label = spaced(id, row.scope);
      Object.assign(row, { place, problem, backend, variant, label, group: spaced(problem, point), sought: `${label} ${nodeid} ${row.state}`.toLowerCase() });
      row.ceiling = spaced(row.reached, row.of_limit);
      row.size = spaced(point, settings, row.scope && row.scope !== "kernel" && `· ${row.scope}`);
    });
    run.backends = [...new Set(run.rows.map((row) => row.backend))].sort();
    run.view = { ...PLAIN, shown: FIRST, scroll: 0 };
    return run;
  }

  const moved = ({ ratio }) => (positive(ratio) ? Math.abs(Math.log(ratio)) : 0);
  const CHOICES = ["state", "backend", "problem", "scope"];

  function filtered(run) {
    const { text, sort, down, ...view } = run.view;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = CHOICES.filter((name) => view[name]);
    const matches = (row) => chosen.every((name) => row[name] === view[name]) && words.every((word) => row.sought.includes(word));
    const { text: field, number } = COLUMNS[sort];
    const sign = down ? -1 : 1;
    const lacks = (row) => (number ? !known(row[number]) : !row[field]);
    return run.rows.filter(matches).sort((a, b) => {
      if (lacks(a) !== lacks(b)) return lacks(a) ? 1 : -1; // what has no value comes last either way
      const order = lacks(a) ? 0 : number ? a[number] - b[number] : collator.compare(a[field], b[field]);
      return sign * order || (number === "rank" ? moved(b) - moved(a) : 0) || a.place - b.place;
    });
  }

  function rowOf(run, row) {
    const name = el("a", { href: linkTo(run, row.case) }, ...breakable(`${row.problem}/${row.variant}`));
    const cells = COLUMNS.map((column) => {
      if (column.title === "case") return el("td", { class: "case" }, name, " ", el("span", { class: "quiet" }, row.size));
      if (column.title === "verdict") return el("td", {}, badge(row.state));
      if (column.title === "change") return el("td", { class: "number" }, row.change, row.interval && el("small", { title: "90 % interval" }, ` ${row.interval}`));
      return el("td", { class: column.number && "number" }, (column.title === "time" && row.way) || (row[column.text] ?? ""));
    });
    return el("tr", { class: tone(row.state) }, ...cells);
  }

  function caseTable(run, place, heading) {
    const { view } = run;
    const body = el("tbody");
    const foot = el("p", { class: "quiet no-print" });
    const head = COLUMNS.map((column, i) => {
      const sort = () => {
        Object.assign(view, { sort: i, down: view.sort === i && !view.down, shown: FIRST });
        show();
        remember(run);
        head[i].firstChild.focus();
      };
      const title = column.title === "time" && run.rows.some((row) => row.way) ? "recorded → now" : column.title;
      const button = el("button", { type: "button", title: MEANINGS.get(title), on: { click: sort } }, title);
      const help = Object.assign(titled("?", title), { ariaLabel: `what ${title} means` });
      return el("th", { scope: "col", class: column.number && !column.plain && "number" }, button, help);
    });
    const more = () => {
      const from = view.shown;
      view.shown += FIRST;
      show();
      body.children[from].querySelector("a").focus();
    };
    const show = () => {
      const rows = filtered(run);
      head.forEach((cell, i) => cell.setAttribute("aria-sort", i !== view.sort ? "none" : view.down ? "descending" : "ascending"));
      body.replaceChildren(...rows.slice(0, view.shown).map((row) => rowOf(run, row)));
      const left = rows.length - view.shown;
      const button = el("button", { type: "button", class: "more", on: { click: more } }, `show ${Math.min(left, FIRST)} more of ${left}`);
      foot.replaceChildren(left > 0 ? button : "");
      heading.textContent = rows.length === run.rows.length ? `${rows.length} rows` : `${rows.length} of ${run.rows.length} rows`;
      return rows;
    };
    const table = el("table", { class: "cases" }, el("thead", {}, el("tr", {}, ...head)), body);
    place.append(el("div", { class: "wide" }, table), foot);
    return show;
  }

  function choice(run, name, change) {
    const having = [...Map.groupBy(run.rows.filter((row) => row[name]), (row) => row[name])];
    if (having.length < 2) return "";
    const order = name === "state" ? ([, a], [, b]) => a[0].rank - b[0].rank : ([a], [b]) => collator.compare(a, b);
    const option = ([value, rows]) => el("option", { value, selected: run.view[name] === value }, `${value} (${rows.length})`);
    const select = el("select", { name, on: { change } }, el("option", { value: "" }, "all"), ...having.sort(order).map(option));
    return el("label", {}, name === "state" ? "verdict" : name, select);
  }

  // --- what failed ---------------------------------------------------------------------------------

  function failureCard(run, card) {
    const line = (title, ...parts) => parts.some(Boolean) && el("div", { class: "line" }, el("dt", {}, title), el("dd", {}, ...parts));
    const sizes = (card.sizes.length ? card.sizes : [""]).flatMap((size, at) => [at ? ", " : " ", size && linked(run, card.cases[at], size)]);
    const name = card.cases.length && !card.sizes.length ? el("a", { href: linkTo(run, card.cases[0]) }, ...named(card.name)) : el("span", {}, ...named(card.name));
    const scope = scopesOf(run, card.cases[0]).find((each) => each.scope === card.scope);
    const what = [card.times && change(card), card.what.length && told(card.what, card.times ? "span" : "b")];
    const since = [...card.since.map((text) => el("p", {}, text)), scope && card.times && pastOf(run, card, scope)];
    const remedies = [command("repeat", card.repeat), card.accept && command("accept", card.accept), card.advice && el("p", { class: "quiet" }, card.advice)];
    const title = el("h2", {}, badge(card.kind, "filled"), " ", name, el("small", {}, ...sizes, card.scope && ` · ${spoken(card.scope)}`));
    const answers = [
      el("dl", {}, line(card.times ? "from → to" : "what", ...what), line("why", card.why.length && listOf(card.why))),
      el("dl", {}, line("since when", ...since)),
      el("dl", { class: "both" }, line("what to do", ...remedies)),
    ];
    return el("article", { class: "card" }, title, el("div", { class: "answers" }, ...answers));
  }

  // Shows the first lines of the first diagnosis, and the rest on request.
  function told([first, ...others], tag) {
    const lines = first.split("\n");
    const rest = [lines.slice(2).join("\n"), ...others].filter(Boolean);
    return el("div", { class: "what" }, el("p", {}, el(tag, {}, lines[0]), lines[1] ? `\n${lines[1].trim()}` : ""), rest.length ? folded("more", false, (body) => body.append(...rest.map((text) => el("p", {}, text)))) : "");
  }

  function change(card) {
    const bar = (title, share, name) => {
      const drawn = el("i", { class: title === "now" && tone(card.kind) });
      drawn.style.setProperty("--part", `${Math.min(100, 100 * share)}%`);
      return [el("span", { class: "quiet" }, title), drawn, el("span", {}, `${(100 * share).toFixed(0)} %${name}`)];
    };
    const limits = () => el("div", { class: "limits" }, ...bar("before", card.share_before, ` of ${card.limit}`), ...bar("now", card.share_now, ""));
    return el("div", {}, levelOf({ way: card.times, change: card.percent, state: card.kind, interval: card.interval }), known(card.share_before) && limits());
  }

  const levelOf = ({ way, change, state, interval }, scope) => el("p", { class: "big" }, way, " ", el("b", { class: tone(state) }, change), " ", el("small", { title: "90 % interval" }, interval), scope && el("small", {}, ` ${scope}`));

  // Returns a button that copies a text, and selects where it is shown.
  function copying(title, text, shown) {
    const click = async ({ currentTarget: button }) => {
      getSelection().selectAllChildren(shown);
      const refused = () => "Selected"; // a page from a file may be refused the clipboard
      button.textContent = await Promise.resolve().then(() => navigator.clipboard.writeText(text)).then(() => "Copied", refused);
    };
    return el("button", { type: "button", class: "no-print", "aria-label": `Copy: ${title}`, on: { click } }, "Copy");
  }

  function command(title, text) {
    const code = el("code", { tabindex: "0" }, ...text.split(/( --[\w-]+)/).flatMap((part, i) => (i % 2 ? [" ", el("span", { class: "whole" }, part.trim())] : named(part))));
    return el("div", { class: "command" }, el("span", { class: "quiet" }, title), code, copying(title, text, code));
  }

  // Draws the recorded sessions of the newest epoch and those of this run.
  function pastOf(run, card, scope) {
    const newest = Math.max(...scope.sessions.map(([, , epoch]) => (recorded(epoch) ? epoch : -1)));
    if (newest < 0) return "";
    const sessions = scope.sessions.filter(([, , epoch]) => !recorded(epoch) || epoch === newest);
    const [least, most] = extent(sessions.filter(([, , epoch]) => recorded(epoch)).map(([, , , ns]) => ns));
    return sessionsOf(run, scope, sessions, `Recorded sessions took ${asTime(least)} to ${asTime(most)}; this run ${card.times}`, tone(card.kind));
  }

  function otherChanges(run) {
    const entry = ([kind, cases, by, cause]) =>
      el("li", {}, el("a", { href: linkToTimes(run, { state: kind }), class: "plain" }, badge(kind)), " ", ...named(cases), " ", el("b", {}, by), cause && el("span", { class: "quiet" }, ` ${cause}`));
    return el("ul", { class: "others" }, ...run.others.map(entry));
  }

  // --- the page of a fleet -------------------------------------------------------------------------

  const lookOf = (kind) => ({ "": RECORDED, bad: { kind: "bad", shape: "diamond" }, doubt: { kind: "doubt", shape: "triangle" }, faint: { kind: "measured", shape: "square" } })[kind && tone(kind)];
  const asShift = (percent) => (known(percent) ? asChange(1 + Number(percent.toFixed(1)) / 100) : "");

  function headline([word, rest], colour) {
    document.title = [word, rest].filter(Boolean).join(": ");
    return el("h1", {}, el("span", { class: colour }, rest ? `${word}:` : word), rest ? ` ${rest}` : "");
  }

  function fleetPage({ headline: first, tone: colour, counts, findings, missing, cards, models, facts, notes }) {
    for (const card of cards) [card.kind] = card.findings.split(" ");
    const ofHost = (host) => findings.filter(([, where]) => where === host).map(([kind, , text]) => ({ kind, line: `${kind} ${host}: ${text}` }));
    const hosts = [...Map.groupBy(cards, ({ host }) => host), ...missing.map((host) => [host, []])].map(([host, of]) => [host, [...of, ...ofHost(host)]]);
    const kinds = [...new Set([...findings.map(([kind]) => kind), ""])]; // the worst first
    const line = ([kind, where, text, remedies]) => el("li", {}, badge(kind), " ", el("b", {}, `${where}:`), ` ${text}`, ...remedies.map((remedy) => el("div", { class: "reason" }, `→ ${remedy}`)));
    const told = el("div", {}, headline(first, colour), ...fewFirst(findings, (few) => el("ul", { class: "told" }, ...few.map(line))));
    const ticket = [first.join(": "), ...findings.map(([kind, where, text]) => `${kind} ${where}: ${text}`)].join("\n");
    told.firstChild.after(el("p", { class: "quiet" }, `${counts} `, copying("for a ticket", ticket, told)));
    main.className = "fleet";
    main.replaceChildren(
      told,
      section("Hosts and their cards", el("div", { class: "strip" }, ...hosts.map(stripOf)), legendOf(kinds.filter((kind) => hosts.some(([, of]) => of.some((card) => card.kind === kind))).map((kind) => ({ text: kind || "nothing found", ...lookOf(kind) })))),
      ...models.flatMap((model) => modelOf(model, cards.sort((a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind)), facts)),
      section("How they were compared", listOf(notes)),
      meanings(),
    );
  }

  function stripOf([host, cards]) {
    const found = cards.filter(({ kind }) => kind).map(({ line }) => line);
    const options = { width: 13 * cards.length + 1, height: 14, role: "img", "aria-label": found.join("; ") || `${host}: nothing found` };
    return el("span", {}, el(found.length ? "b" : "span", {}, host), svg("svg", options, ...cards.map(({ kind, line }, i) => mark(7 + 13 * i, 7, { ...lookOf(kind), text: line }))));
  }

  // Draws how far a model's cards are from the median one, a line a class; copies that are farther than any kernel stand at
  // the end. Then shows a row for each card, and above it what is the same of all.
  function modelOf([name, classes], all, facts) {
    const cards = all.filter(({ model }) => model === name);
    const [width, step, edge, few] = [main.clientWidth, 44, 8, main.clientWidth < 600 ? 1 : 4];
    const pointsOf = ([title, limit]) => cards.map(({ [`${title} %`]: shift, name, kind }) => ({ shift, kind: Math.abs(shift) >= limit ? kind : "", text: `${name} ${asShift(shift)}` })).filter(({ shift }) => known(shift));
    const scaling = classes.filter(([title]) => title !== "copies" || classes.length === 1);
    const [low, high] = around(scaling.flatMap((of) => [of[1], -of[1], ...pointsOf(of).map(({ shift }) => shift)]), 0.03);
    const x = (shift) => edge + ((Math.max(low, Math.min(high, shift)) - low) * (width - 2 * edge)) / (high - low);
    const drawn = classes.flatMap(([title, limit], i) => {
      const points = pointsOf([title, limit]).sort((a, b) => Math.abs(a.shift) - Math.abs(b.shift));
      const out = points.filter(({ kind }) => kind).map(({ text }) => text).reverse();
      const said = `${title}: ${out.slice(0, few).join(", ") || "none stands out"}${out.length > few ? ` and ${out.length - few} more` : ""}`;
      const dots = points.map(({ shift, kind, text }) => mark(x(shift), step * i + 28, { ...lookOf(kind), text }));
      return [word(said, edge, step * i + 14, "start"), rect("band", x(-limit), step * i + 20, x(limit) - x(-limit), 16), ...dots];
    });
    const title = `Times beside the median card: ${name}`;
    const own = facts.filter((fact) => cards.some((card) => card[fact] !== cards[0][fact]));
    const same = facts.filter((fact) => !own.includes(fact)).map((fact) => `${fact} ${cards[0][fact]}`).join(", ");
    const rows = cards.map((card) => [card.verdict, card.name, card.uuid.replace("GPU-", "").slice(0, 8), ...classes.map(([of]) => asShift(card[`${of} %`])), card["failed tests"] || "", ...own.map((fact) => card[fact])]);
    const titles = ["verdict", "card", "UUID", ...[...classes.map(([of]) => of), "failed tests", ...own].map((of) => [of, true])];
    return [
      classes.length ? pictured(title, "A mark is a card, and right is slower; in the band no card is suspected.", drawing("shifts", width, step * classes.length + 20, title, ...drawn, ...[[low, "start"], [0, "middle"], [high, "end"]].map(([shift, anchor]) => word(asShift(shift), x(shift), step * classes.length + 16, anchor)))) : "",
      section(`Cards: ${name}`, same && el("p", { class: "quiet" }, `All: ${same}`), ...fewFirst(rows, (part) => tableOf(titles, part))),
    ];
  }

  // --- the two pages -------------------------------------------------------------------------------

  function overview(run) {
    const { view } = run;
    const plots = [];
    const heading = el("span", { class: "quiet", role: "status" });
    const cases = el("div", { id: "cases" });
    let waiting = 0;
    const setting = (name) => (event) => {
      Object.assign(view, { [name]: event.target.value, shown: FIRST });
      const rows = showRows();
      remember(run);
      clearTimeout(waiting);
      waiting = setTimeout(() => plots.forEach(({ body, draw }) => draw(body, run, rows)), 150);
    };
    const plotted = (title, draw) =>
      folded(title, true, (body) => {
        plots.push({ body, draw });
        draw(body, run, filtered(run));
      });
    const wording = { type: "search", id: "search", value: view.text, placeholder: "part of a name", autocomplete: "off" };
    const search = el("label", {}, "search", el("input", { ...wording, on: { input: setting("text") } }));
    const choices = CHOICES.map((name) => choice(run, name, setting(name)));
    const form = { class: "filter no-print", role: "search", "aria-label": "cases", on: { submit: (event) => event.preventDefault() } };
    const filter = el("form", form, search, ...choices, heading);
    const timed = run.rows.filter(counts);
    const machine = run.machine ? `Is the machine as recorded? ${run.machine[0].toUpperCase()}${run.machine.slice(1)}` : "How was it compared?";
    const part = (title, count, children, open = false) => count && folded(title, open, (body) => body.append(...children()));
    const numbered = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
    main.replaceChildren(
      ...[
        headline(run.headline, tone(run.headline[0])),
        el("p", { class: "quiet" }, run.context.join(" · ")),
        el("p", { class: "quiet" }, run.verdict),
        run.problems.length && section("Went wrong", listOf(run.problems)),
        ...fewFirst(run.failures, (few) => el("div", {}, ...few.map((card) => failureCard(run, card)))),
        run.others.length && otherChanges(run),
        timed.length && section("Which variants are best?", bestOf(run, timed)),
        part(numbered(run.notes.length, "note"), run.notes.length, () => [notes(run)]),
        part("To record and to accept", run.closing.length, () => run.closing.map(([text, line]) => (line ? command(text, line) : el("p", {}, text))), run.nothing_recorded),
        part("Machine and libraries", run.facts.length, () => [facts(run.facts)]),
        part(`Did not run: ${numbered(run.skips.length, "reason")}`, run.skips.length, () => [listOf(run.skips)]),
        el("h2", {}, "Cases"),
        filter,
        timed.length && plotted("How fast are the variants?", showVariants),
        run.rows.some(onRoof) && plotted("How near to the limits of the card?", plotRoofline),
        (run.machine || run.since.length > 0) && folded(machine, !run.machine.startsWith("yes"), (body) => body.append(listOf(run.since), canariesOf(run))),
        DATA.trends.length > 0 && plotted("Since when? Times over sessions", plotTrends),
        cases,
        meanings(),
        el("p", { class: "quiet no-print keys" }, "Keys: / searches, Escape comes back from a case, the arrows go to its neighbours."),
      ].filter(Boolean),
    );
    const showRows = caseTable(run, cases, heading);
    showRows();
  }

  const canariesOf = (run) => (run.canaries.length ? tableOf(["canary", ["time", true], ["change", true], "verdict"], run.canaries) : "");
  const facts = (pairs) => el("dl", {}, ...pairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));

  function notes(run) {
    const entry = ([text, who]) => {
      const links = who.slice(0, 3).flatMap(([index, label], i) => [i ? ", " : "", linked(run, index, label)]);
      const more = who.length > 3 ? ` and ${who.length - 3} more` : "";
      return el("li", {}, ...links, more, el("div", { class: "reason" }, text));
    };
    return el("ul", { class: "told" }, ...run.notes.slice(0, FIRST).map(entry));
  }

  // Returns each time of a case with what its row says.
  const scopesOf = (run, index) => (run.cases[index]?.scopes || []).map((scope) => ({ ...scope, ...run.rows.find((row) => row.case === index && row.scope === scope.timing[0]) }));

  function casePage(run, index) {
    const one = run.cases[index];
    const own = run.rows.filter((row) => row.case === index);
    const order = [...new Set(filtered(run).map((row) => row.case))];
    const at = order.indexOf(index);
    const step = (by, text) => {
      const next = order[at + by];
      return at >= 0 && next !== undefined ? el("a", { href: linkTo(run, next), rel: by < 0 ? "prev" : "next" }, text) : "";
    };
    const scopes = scopesOf(run, index);
    const states = [...new Set(own.map((row) => row.state))].filter((state, i, all) => state && (TONES.has(state) || all.length === 1));
    const tables = [
      ["Times", TIMES, scopes.map((scope) => [...scope.timing, ...TIME_FIGURES.map(([, name]) => scope[name]), badge(scope.state)])],
      ["Errors", run.error_titles, one.errors],
      ["Kernels", run.kernel_titles, one.kernels],
      ["Observed", ["of", "observer", "what it saw"], one.observed.map(([of, ...rest]) => [of || "the test", ...rest])],
    ];
    const told = one.told.map(([kind, text, key]) => el("li", {}, badge(kind), " ", key, " ", el("span", { class: "reason" }, text)));
    main.replaceChildren(
      el("nav", { class: "no-print", "aria-label": "cases" }, el("a", { href: linkToTimes(run), rel: "up" }, "← all cases"), step(-1, "previous"), step(1, "next")),
      el("h1", { tabindex: "-1" }, ...states.flatMap((state) => [badge(state), " "]), ...named(one.id)),
      ...scopes.filter(({ way }) => way).flatMap((scope) => [levelOf(scope, spoken(scope.scope)), scope.since && el("p", {}, scope.since)]).filter(Boolean),
      facts(one.facts),
      told.length ? section("In words", el("ul", { class: "told" }, ...told)) : "",
      ...tables.filter(([, , rows]) => rows.length).map(([title, ...table]) => section(title, tableOf(...table))),
      section("Repeat it", command("repeat", one.command)),
      ...scopes.map((scope) => scopeSection(run, one, scope)),
      one.epochs.length ? section("Epochs of the record", tableOf(["epoch", "opened", "reason"], one.epochs.map((each, i) => [String(i + 1), ...each]))) : "",
      meanings(),
    );
    document.title = `${one.id} · gpukern`;
  }

  const TITLES = { ...DATA.titles, range: "95 % interval", n: "samples", interval: "90 % interval" };
  const FIGURES = ["time", "range", "uncertainty", "n", "rate", "ceiling", "speedup", "change", "interval", "threshold"];
  const TIME_FIGURES = FIGURES.map((name) => [TITLES[name] ?? name, name]);
  const TIMES = ["scope", "timer", "cache", ...TIME_FIGURES.map(([title]) => [title, true]), "verdict"];

  function scopeSection(run, one, scope) {
    const [name, timer, cache] = scope.timing;
    const title = "Recorded sessions and this run";
    const drawings = [
      scope.distribution && distributionOf(scope),
      scope.sessions.length > 1 && el("figure", {}, el("figcaption", {}, title), sessionsOf(run, scope, scope.sessions, title, tone(scope.state))),
    ].filter(Boolean);
    const reason = !one.told.some(([, text]) => text === scope.reason) && scope.reason;
    const [workTitle, rows, notes] = scope.work ?? [];
    const whole = (row) => [...row.slice(0, -1), ...run.launched[row.at(-1)]];
    const work = workTitle ? [el("h3", {}, workTitle), tableOf(run.work_titles, rows.map(whole)), listOf(notes)] : [];
    const words = [el("p", { class: "quiet" }, scope.told), reason && el("p", {}, badge(scope.state), " ", reason)];
    return section(`${name} by ${timer}, ${cache}`, ...words, el("div", { class: "plots" }, ...drawings), ...work);
  }

  // --- where the reader is -------------------------------------------------------------------------

  const numberOf = (run) => DATA.runs.indexOf(run);
  const placeIn = (run, place) => `#${new URLSearchParams([...(numberOf(run) ? [["run", numberOf(run)]] : []), ...place])}`;
  const linkTo = (run, index) => placeIn(run, [["case", run.cases[index].id]]);
  const linked = (run, index, text) => (known(index) ? el("a", { href: linkTo(run, index) }, text) : text);

  // Returns a link to the table with search, filters and order as they are, or as given.
  function linkToTimes(run, view = run.view) {
    const given = Object.keys(PLAIN).filter((name) => known(view[name]) && view[name] !== PLAIN[name]);
    return placeIn(run, given.map((name) => [name, name === "sort" ? COLUMNS[view.sort].title : view[name]]));
  }

  const remember = (run) => history.replaceState(null, "", linkToTimes(run));

  let last = null;

  function route() {
    if (DATA.fleet) return fleetPage(DATA.fleet);
    const place = new URLSearchParams(location.hash.slice(1));
    const run = prepared(DATA.runs[Number(place.get("run"))] || DATA.runs[0]);
    const index = run.places.get(place.get("case"));
    if (last && !last.onCase) last.run.view.scroll = last.scroll;
    chosen.value = String(numberOf(run));
    if (index === undefined) {
      for (const name of ["text", ...CHOICES]) run.view[name] = place.get(name) || "";
      run.view.sort = Math.max(0, COLUMNS.findIndex(({ title }) => title === place.get("sort")));
      run.view.down = place.get("down") === "true";
      overview(run);
      if (last?.onCase) document.querySelector(`.cases a[href="${CSS.escape(last.hash)}"]`)?.focus({ preventScroll: true });
      if (last && !last.onCase && last.run === run && place.size) document.getElementById("cases").scrollIntoView();
      else setTimeout(() => window.scrollTo(0, run.view.scroll), 100); // once the plots above are drawn
    } else {
      casePage(run, index);
      document.querySelector("h1").focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
    last = { run, onCase: index !== undefined, scroll: window.scrollY, hash: location.hash };
  }

  const choose = () => location.assign(chosen.value === "0" ? "#" : `#run=${chosen.value}`);
  const options = DATA.runs.map((run) => el("option", { value: numberOf(run) }, run.name));
  const chosen = el("select", { id: "run", "aria-label": "run", on: { change: choose } }, ...options);
  document.querySelector("header").append(DATA.runs.length > 1 ? chosen : el("span", {}, (DATA.fleet || DATA.runs[0]).name));

  addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
    if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
    const search = document.getElementById("search");
    if (event.key === "/" && search) {
      event.preventDefault();
      search.focus();
    }
    const rel = { Escape: "up", ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    if (rel) document.querySelector(`a[rel=${rel}]`)?.click();
  });
  addEventListener("scroll", () => { if (last) last.scroll = window.scrollY; }, { passive: true });
  addEventListener("hashchange", route);
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("details")) {
      box.open = true;
      box.dispatchEvent(new Event("toggle")); // the browser's own comes later
    }
  });
  route();
})();
