// Shows the runs of a report: an overview with the table of cases, or one case.
//
// The data comes from a file that anybody may have written. So text enters the page as text nodes only, and
// every link leads to a place in this page. Python writes words and figures; this script sorts, filters and
// draws, and formats only what stands on an axis or under the pointer.
"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const FIRST = 300; // rows that are drawn before more are asked for
  const FEW = 10; // failures, findings and runs' times, likewise
  const REACH = 24; // pixels from which the pointer finds a mark
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

  // A table crosses in blocks of columns: all values, or those that differ and the place of each row's among them.
  const records = (blocks) =>
    blocks.flatMap(({ count, columns }) => {
      const rows = Array.from({ length: count }, () => ({}));
      for (const [name, { values, distinct, places }] of Object.entries(columns)) {
        for (let i = 0; i < count; i += 1) rows[i][name] = values ? values[i] : distinct[places[i]];
      }
      return rows;
    });

  DATA.trends.series = records(DATA.trends.series);

  const digits = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

  function scaled(value, units) {
    const [scale, unit] = units.findLast((each) => Math.abs(value) >= each[0] * 0.9995) || units[0];
    return `${digits(value / scale)} ${unit}`;
  }

  const asTime = (ns) => scaled(ns, DATA.units.time);
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
  const badge = (state, more = "") => (state ? el("span", { class: `badge ${tone(state)} ${more}` }, state) : "");

  // Lets a long name break behind its dots and underscores, or behind its parts alone.
  const breakable = (name, behind = /(?<=[._])/) => name.split(behind).flatMap((part) => [part, el("wbr")]);
  const named = (name) => breakable(name, /(?<=[/,])/);
  const spoken = (scope) => scope.replaceAll("_", " ");

  // Shows what is in it once it is opened: plots need a width, and thousands of them time.
  function folded(title, open, fill) {
    const body = el("div");
    const toggle = () => {
      if (box.open && !body.hasChildNodes()) fill(body);
    };
    const box = el("details", { open, on: { toggle } }, el("summary", {}, title), body);
    return box;
  }

  function openNow(box) {
    box.open = true;
    box.dispatchEvent(new Event("toggle")); // the browser's own comes later
  }

  // Returns a table without its empty columns. A column is a name, or a name and whether it is numeric.
  function tableOf(columns, rows) {
    const names = columns.map((column) => [column].flat());
    const kept = names.map((_, i) => i).filter((i) => rows.some((row) => known(row[i]) && row[i] !== ""));
    const cells = (tag, row) =>
      kept.map((i) => el(row[i] === "" ? "td" : tag, { class: names[i][1] && "number" }, row[i] ?? ""));
    const titles = names.map(([name]) => name);
    const body = rows.map((row) => el("tr", {}, ...cells("td", row)));
    return scrolled(titles.filter(Boolean).join(", "), {}, cells("th", titles), body);
  }

  // Returns a table of rows in a box that scrolls, which the keyboard reaches.
  function scrolled(label, options, head, rows) {
    const table = el("table", options, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
    return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": label }, table);
  }

  const section = (title, ...children) => el("section", {}, el("h2", {}, title), ...children);
  const listOf = (texts) => el("ul", {}, ...texts.map((text) => el("li", {}, text)));

  // --- plots ---------------------------------------------------------------------------------------

  const SHAPES = ["circle", "square", "triangle", "diamond"];
  const CORNERS = {
    square: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
    triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
    diamond: [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
  };
  const COLOURS = 8;
  // Tells the i-th of a legend's entries from the others by colour and shape.
  const look = (i) => ({ colour: `c${i % COLOURS}`, shape: SHAPES[(i + Math.floor(i / COLOURS)) % SHAPES.length] });
  const fontOf = (px) => `${12 * px}px ${getComputedStyle(document.body).fontFamily}`;

  // Returns what the colours of the style sheet are now: light, dark or printed.
  function colours(box) {
    const shade = (name) => {
      box.style.color = `var(--${name})`;
      return getComputedStyle(box).color;
    };
    const found = {};
    return new Proxy(found, { get: (_, name) => (found[name] ??= shade(name)) });
  }

  // Draws `spec.marks` and `spec.paint` between uPlot's axes. A mark is {x, y, low, high, text, colour,
  // shape, open}: `open` runs on a click. Dragging zooms, a double click shows everything again.
  function chart(host, spec) {
    const summary = [spec.title, spec.summary, spec.hint].filter(Boolean).join(". ");
    const box = el("div", { class: "plot", role: "img", "aria-label": summary, "data-marks": spec.marks.length });
    const readout = el("output", {}, spec.hint);
    host.append(el("figure", {}, el("figcaption", {}, spec.title), spec.legend && legendOf(spec.legend), box, readout));
    charts.set(box, { spec, readout });
    widths.observe(box); // which draws it, too, once it is in the page
  }

  const charts = new Map();
  const widths = new ResizeObserver((changed) => {
    for (const { target: box } of changed) {
      if (!box.isConnected) charts.delete(box);
      else if (box.clientWidth && box.clientWidth !== charts.get(box).plot?.width) draw(box);
    }
  });

  function draw(box) {
    const own = charts.get(box);
    own.plot?.destroy();
    own.plot = new uPlot(uplotOptions(box, own), [own.spec.x.range, [null, null]], box);
  }

  function redrawCharts() {
    for (const box of charts.keys()) if (box.clientWidth) draw(box);
  }

  // The swatches are drawings, not canvases, so that they follow a change of colours.
  function legendOf(entries) {
    const swatch = ({ colour, shape, hollow }) => {
      const points = CORNERS[shape]?.map(([x, y]) => `${9 * x},${9 * y}`).join(" ");
      const form = points ? svg("polygon", { points }) : svg("circle", { r: 9 });
      form.style.fill = hollow ? "none" : `var(--${colour})`;
      form.style.stroke = `var(--${colour})`;
      form.style.strokeWidth = hollow ? 2.5 : 0;
      return svg("svg", { viewBox: "-14 -14 28 28", "aria-hidden": "true" }, form);
    };
    return el("p", { class: "legend" }, ...entries.map((each) => el("span", {}, swatch(each), each.text)));
  }

  function uplotOptions(box, { spec, readout }) {
    const paint = colours(box);
    const font = fontOf(1);
    const line = { stroke: () => paint.grid, width: 1 };
    const axis = (side, { title, format, log, whole, space }) => ({
      label: title,
      labelFont: font,
      labelSize: 20,
      font,
      stroke: () => paint.soft,
      grid: line,
      ticks: line,
      values: (u, found) => found.map((value) => (known(value) ? format(value) : "")),
      ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000], space: space || 40 } : {}),
      ...(log ? { splits: (u, i, low, high) => decades(low, high), filter: (u, found) => found } : {}),
      ...(side === "x" ? { size: 32 } : { size: (u, texts) => 24 + 7 * Math.max(3, ...(texts || []).map((t) => t.length)) }),
    });
    const scale = ({ log }) => ({ time: false, auto: false, range: (u, low, high) => [low, high], ...(log ? { distr: 3 } : {}) });
    const show = (u, key, [min, max]) => u.setScale(key, { min, max });
    const everything = (u) => u.batch(() => ["x", "y"].forEach((key) => show(u, key, spec[key].range)));
    let under = null; // the mark that is nearest to the pointer
    const point = (u) => {
      const { left, top } = u.cursor;
      let least = REACH;
      under = null;
      for (const mark of left < 0 ? [] : spec.marks) {
        const away = Math.hypot(u.valToPos(mark.x, "x") - left, u.valToPos(mark.y, "y") - top);
        if (away < least) [under, least] = [mark, away];
      }
      readout.textContent = under?.text ?? spec.hint ?? "";
      u.over.style.cursor = under?.open ? "pointer" : "";
    };
    return {
      width: box.clientWidth,
      height: spec.height || 260,
      legend: { show: false },
      cursor: {
        points: { show: false },
        drag: { x: true, y: true, uni: 24 },
        bind: { dblclick: (u) => () => (everything(u), null) },
      },
      scales: { x: scale(spec.x), y: scale(spec.y) },
      axes: [axis("x", spec.x), axis("y", spec.y)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        ready: [everything, (u) => u.over.addEventListener("click", () => !u.select.width && under?.open?.())],
        setCursor: [point],
        draw: [(u) => drawAll(u, spec, paint)],
      },
    };
  }

  function drawAll(u, spec, paint) {
    const { ctx } = u;
    const px = uPlot.pxRatio;
    const { left, top, width, height } = u.bbox;
    const pen = {
      ctx, px, left, top, width, height, right: left + width, bottom: top + height,
      x: (value) => u.valToPos(value, "x", true),
      y: (value) => u.valToPos(value, "y", true),
      rect(x0, y0, x1, y1, colour) {
        ctx.fillStyle = paint[colour];
        ctx.fillRect(x0, y0, Math.max(x1 - x0, px), Math.max(y1 - y0, px));
      },
      line(points, colour, { width = 1 } = {}) {
        ctx.beginPath();
        points.forEach(([x, y]) => ctx.lineTo(pen.x(x), pen.y(y)));
        ctx.strokeStyle = paint[colour];
        ctx.lineWidth = width * px;
        ctx.stroke();
      },
      label(text, x, y, colour, align = "left") {
        Object.assign(ctx, { font: fontOf(px), fillStyle: paint[colour], textAlign: align, textBaseline: "bottom" });
        ctx.fillText(text, x, y - 3 * px);
        const { width } = ctx.measureText(text);
        return [align === "right" ? x - width : x, y - 17 * px, width, 15 * px];
      },
      dot({ x, y, shape, colour, hollow }, r) {
        const corners = CORNERS[shape];
        ctx.beginPath();
        if (corners) corners.forEach(([dx, dy]) => ctx.lineTo(pen.x(x) + r * dx, pen.y(y) + r * dy));
        else ctx.arc(pen.x(x), pen.y(y), r, 0, 2 * Math.PI);
        ctx.closePath();
        Object.assign(ctx, { fillStyle: paint[hollow ? "ground" : colour], strokeStyle: paint[colour], lineWidth: 1.6 * px });
        ctx.fill();
        if (hollow) ctx.stroke();
      },
    };
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    spec.paint?.(pen);
    for (const { x, low, high, colour } of spec.marks) {
      if (known(low) && known(high)) pen.line([[x, low], [x, high]], colour, { width: 1.5 });
    }
    if (spec.dots) for (const mark of spec.marks) pen.dot(mark, spec.dots * px);
    ctx.restore();
  }

  // Returns the places of ticks on a logarithmic axis: powers of ten, and between them where those are few.
  function decades(low, high) {
    const span = Math.log10(high / low);
    const steps = span > 4 ? [1] : span > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    const every = Math.ceil(span / 8);
    const first = Math.floor(Math.log10(low));
    const powers = Array.from({ length: Math.ceil(span) + 2 }, (_, i) => first + i).filter((power) => power % every === 0);
    return powers.flatMap((power) => steps.map((step) => step * 10 ** power)).filter((value) => value >= low && value <= high);
  }

  // Returns a range around values, `part` of it free at each end.
  function around(values, { log = false, part = 0.06 } = {}) {
    const [low, high] = extent(values.filter((value) => known(value) && (!log || value > 0)));
    if (low > high) return log ? [1, 10] : [0, 1];
    if (log) {
      const factor = Math.max((high / low) ** part, 1.15);
      return [low / factor, high * factor];
    }
    const margin = (high - low) * part || Math.abs(high) * 0.01 || 1;
    return [low - margin, high + margin];
  }

  const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

  // Returns an axis, logarithmic where values differ so much that no other shows them all.
  function fitting(values, title, format) {
    const [low, high] = extent(values.filter(positive));
    const log = high > 6 * low;
    return { title, format, log, range: around(values, { log }) };
  }

  // --- the plots of a case -------------------------------------------------------------------------

  function plotDistribution(host, scope) {
    const [low, high, counts, note] = scope.distribution;
    const width = (high - low) / counts.length || Math.abs(low) * 0.001 || 1;
    const marks = counts.map((count, i) => ({
      x: low + (i + 0.5) * width,
      y: count,
      text: `${asTime(low + i * width)} to ${asTime(low + (i + 1) * width)}: ${count} samples`,
    }));
    chart(host, {
      title: "Distribution of the samples",
      hint: `median ${scope.time} in its 95 % interval${note ? `; ${note}` : ""}`,
      x: { title: "time", format: asTime, range: [low - width / 2, low + (counts.length + 0.5) * width] },
      y: { title: "samples", format: digits, range: [0, Math.max(...counts) * 1.08] },
      marks,
      paint: (pen) => {
        for (const { x, y } of marks) {
          if (y) pen.rect(pen.x(x - width / 2), pen.y(y), pen.x(x + width / 2) - pen.px, pen.y(0), "accent");
        }
        medianBand(scope, (low, high, colour) => pen.rect(pen.x(low), pen.top, pen.x(high), pen.bottom, colour));
      },
    });
  }

  // Draws the median in its interval, as two bands that cross a plot.
  function medianBand({ ns, low_ns, high_ns }, band) {
    if (!known(ns)) return;
    band(low_ns ?? ns, high_ns ?? ns, "band");
    band(ns, ns, "ink");
  }

  const FIRST_STEP = "一".charCodeAt(0); // a character of a series stands for one of 4096 steps

  function plotOverTime(host, scope) {
    const [count, stride, low, high, packed] = scope.series;
    const values = [...packed].map((step) => low + ((high - low) * (step.charCodeAt(0) - FIRST_STEP)) / 4095);
    const marks = values.map((y, i) => ({
      x: 1 + i * stride,
      y,
      colour: "accent",
      text: `${stride === 1 ? "sample" : "about sample"} ${digits(1 + Math.floor(i * stride))}: ${asTime(y)}`,
    }));
    chart(host, {
      title: "Samples in the order taken",
      summary: `From ${asTime(low)} to ${asTime(high)}, median ${scope.time}`,
      hint: stride === 1 ? `${count} samples` : `lowest and highest of each stretch of ${count} samples`,
      x: { title: "sample", format: digits, range: around(marks.map((mark) => mark.x), { part: 0.02 }) },
      y: { title: "time", format: asTime, range: around([...values, scope.ns]) },
      marks,
      dots: marks.length > 60 ? 1.5 : 2.5,
      paint: (pen) => {
        pen.line(marks.map(({ x, y }) => [x, y]), "accent", { width: 0.75 });
        medianBand(scope, (low, high, colour) => pen.rect(pen.left, pen.y(high), pen.right, pen.y(low), colour));
      },
    });
  }

  const recorded = (epoch) => typeof epoch === "number";
  // What sessions of a run were measured for, as Python names it.
  const ROLES = {
    measured: { text: "this run", colour: "ink", shape: "diamond" },
    confirming: { text: "confirms", colour: "ink", shape: "square", hollow: true },
    further: { text: "further session", colour: "ink", shape: "triangle", hollow: true },
  };

  function plotSessions(host, run, scope) {
    const cards = [...new Set(scope.sessions.map(([, card]) => card))];
    const named = (card) => (known(card) ? `card ${run.cards[card]}` : "no card named");
    const found = scope.sessions.map(([moment, card, epoch, y, low, high], i) => {
      const span = recorded(epoch) ? `epoch ${epoch + 1}` : "this run";
      const entry = recorded(epoch) ? { text: named(card), ...look(cards.indexOf(card)) } : ROLES[epoch];
      const range = known(low) && known(high) ? `${asTime(low)} … ${asTime(high)}, ` : "";
      const text = `${recorded(epoch) ? span : entry.text}, ${run.moments[moment]}: ${asTime(y)}, ${range}${named(card)}`;
      return { epoch, span, entry, day: run.moments[moment].slice(0, 10), mark: { x: i + 1, y, low, high, ...entry, text } };
    });
    const rank = ({ epoch }) => Object.keys(ROLES).indexOf(epoch); // cards before roles
    const legend = new Map([...found].sort((a, b) => rank(a) - rank(b)).map(({ entry }) => [entry.text, entry]));
    const [low, high] = around(found.flatMap(({ mark }) => [mark.low, mark.high, mark.y]));
    const begins = found.flatMap(({ span }, i) => (span === found[i - 1]?.span ? [] : [i]));
    chart(host, {
      title: "Recorded sessions and this run",
      hint: `${found.length} sessions, oldest first`,
      legend: [...legend.values()],
      x: { title: "session", format: (x) => found[Math.round(x) - 1]?.day ?? "", whole: true, space: 90, range: [0.4, found.length + 0.6] },
      y: { title: "time", format: asTime, range: [low, high + 0.14 * (high - low)] }, // with room for the epochs' names
      marks: found.map(({ mark }) => mark),
      dots: 4.5,
      paint: (pen) => {
        let free = Infinity; // what is left of a newer label
        for (const first of begins.toReversed()) {
          const x = first ? pen.x(first + 0.5) : pen.left;
          if (first) pen.rect(x, pen.top, x, pen.bottom, "soft");
          const width = 7.5 * found[first].span.length * pen.px;
          const right = x > pen.left + 0.8 * pen.width;
          const [from, to] = right ? [pen.right - width, pen.right] : [x, x + width];
          if ((right ? pen.right : to) > free) continue;
          free = from;
          pen.label(found[first].span, right ? to - 4 * pen.px : from + 4 * pen.px, pen.top + 16 * pen.px, "soft", right ? "right" : "left");
        }
      },
    });
  }

  function plotPairs(host, scope) {
    const points = scope.pairs.map(([base, head]) => ({ y: head / base, role: "recorded" }));
    const title = "Pairs of sessions, base and head in turn";
    const told = `${points.length} pairs; the band is the 90 % interval of their ratio, ${scope.interval}`;
    const band = known(scope.ratio_low) && [scope.ratio_low, scope.ratio_high];
    host.append(pictured(title, told, points, { format: asChange, band, title: `${title}: ${told}`, height: 200 }));
  }

  const pictured = (title, told, ...picture) => el("figure", {}, el("figcaption", {}, title), small(...picture), el("output", {}, told));

  // --- the plots of all cases ----------------------------------------------------------------------

  const SHIFT = 0.05; // up to which a plot tells changes of single kernels apart

  // Shows for each class of kernel how its times moved together, and each time.
  function plotShifts(host, run, rows) {
    host.replaceChildren(listOf(run.since));
    if (run.canaries.length) host.append(tableOf(["canary", ["time", true], ["change", true], "verdict, usual"], run.canaries));
    const found = rows.filter((row) => positive(row.ratio));
    if (!found.length) return;
    const byClass = Map.groupBy(found, (row) => row.class || row.scope);
    const classes = [...new Set([...Object.keys(run.shifts), ...byClass.keys()])];
    const clip = (ratio) => Math.max(1 - SHIFT, Math.min(1 + SHIFT, ratio));
    const mark = (row, i) => ({
      x: clip(row.ratio),
      y: 0.1 * ((i + 1) % 6) - 0.3,
      colour: tone(row.state),
      shape: clip(row.ratio) === row.ratio ? "circle" : "diamond",
      text: `${row.label}: ${row.change}${row.interval ? `, 90 %: ${row.interval}` : ""} ${row.state}`,
      open: () => go(run, row.case),
    });
    const told = (name) => (run.shifts[name] ? `${name}: ${asChange(run.shifts[name][0])} [${run.shifts[name].slice(1).map(asChange).join(", ")}]` : name);
    const lines = classes.map((name) => ({ name: told(name), interval: run.shifts[name]?.map(clip), marks: (byClass.get(name) || []).map(mark) }));
    chartOfLines(host, lines, 1, {
      title: "Shift of times since the record, by what limits them",
      hint: `${found.length} times; a line is the median of a class with its 95 % interval; a diamond lies beyond; a click opens a case`,
      summary: classes.map(told).join("; "),
      height: 90 + 56 * classes.length,
      x: { title: "change", format: asChange, range: [1 - 1.06 * SHIFT, 1 + 1.06 * SHIFT] },
      dots: found.length > 200 ? 2.5 : 3.5,
      lift: 0.32,
    });
  }

  // Draws {name, marks, interval} one below another: `y` of a mark is from its line on, and an interval is
  // [middle, low, high]. An upright line stands at `usual`; names stand by `lift` above.
  function chartOfLines(host, lines, usual, spec) {
    const place = (i) => lines.length - i;
    chart(host, {
      ...spec,
      y: { title: "", format: () => "", whole: true, range: [0.35, lines.length + 0.85] },
      marks: lines.flatMap(({ marks }, i) => marks.map((mark) => ({ ...mark, y: place(i) + mark.y }))),
      paint: (pen) => {
        pen.line([[usual, 0], [usual, lines.length + 1]], "soft");
        lines.forEach(({ name, interval }, i) => {
          pen.label(name, pen.left + 6 * pen.px, pen.y(place(i) + spec.lift), "ink");
          if (!interval) return;
          const [middle, low, high] = interval;
          const [from, to] = [place(i) - 0.4, place(i) + 0.3];
          pen.rect(pen.x(low), pen.y(to), pen.x(high), pen.y(from), "band");
          pen.line([[middle, from], [middle, to]], "ink", { width: 2 });
        });
      },
    });
  }

  // Shows each case's series over sessions, those with a step first.
  function plotTrends(host, run, rows) {
    const labels = new Map(rows.map((row) => [row.label, row]));
    const all = DATA.trends.series.map((each) => ({ ...each, label: `${each.case} ${each.scope}` }));
    const first = ({ label, change }) => (change ? -1 : labels.get(label).rank);
    const found = all.filter(({ label }) => labels.has(label)).sort((a, b) => first(a) - first(b));
    const picture = ({ label, case: id, scope, points, ns, levels, change }) => {
      const moments = points.map((point) => DATA.trends.moments[point]);
      const drawn = ns.map((y, i) => ({ y, role: run.name.startsWith(moments[i]) ? "measured" : "recorded" }));
      const row = labels.get(label);
      const jump = tone(row.state) !== "faint" && row.change ? `; this run: ${row.state} ${row.change}, too new to be a step` : "";
      const said = `${change || `no step, ${moments[0].slice(0, 10)} to ${moments.at(-1).slice(0, 10)}`}${jump}`;
      const name = el("a", { href: linkTo(run, row.case) }, ...named(id), ` ${scope}`);
      return pictured(name, said, drawn, { format: asTime, levels, title: `${label}, ${ns.length} sessions: ${said}`, height: 90 });
    };
    const stepped = found.filter((each) => each.change).length;
    host.replaceChildren(
      el("p", { class: "quiet" }, `${found.length} series of recorded sessions and these runs, oldest first; ${stepped} with a step. Runs that CI kept make them longer: gpukern report RUN.json RUN.json … -o report.html`),
      ...fewFirst(found, (part) => el("div", { class: "trends" }, ...part.map(picture))),
    );
  }

  // Shows the first of a list, and the others on request.
  const fewFirst = (all, shown) => [
    all.length && shown(all.slice(0, FEW)),
    all.length > FEW && folded(`${Math.min(all.length, FIRST) - FEW} more`, false, (body) => body.append(shown(all.slice(FEW, FIRST)))),
  ].filter(Boolean);

  function plotRoofline(host, run, rows) {
    host.replaceChildren();
    plotBytesAlone(host, run, rows);
    const found = rows.filter((row) => positive(row.intensity) && positive(row.flop_s)).sort((a, b) => a.intensity - b.intensity);
    if (!found.length) return;
    const ceilings = run.ceilings.map(([name, kind, rate, text]) => ({ kind, rate, text: `${name} ${text}` }));
    const memory = ceilings.filter(({ kind }) => kind === "memory");
    const compute = ceilings.filter(({ kind }) => kind === "compute").sort((a, b) => b.rate - a.rate);
    const [fastest, broadest] = [compute, memory].map((of) => Math.max(...of.map(({ rate }) => rate)));
    const backends = [...new Set(found.map((row) => row.backend))].sort();
    const marks = found.map((row) => ({
      x: row.intensity,
      y: row.flop_s,
      ...look(backends.indexOf(row.backend)),
      open: () => go(run, row.case),
      text: `${row.label}: ${asRate(row.flop_s)} at ${digits(row.intensity)} FLOP a byte${row.ceiling ? `, ${row.ceiling}` : ""}`,
    }));
    const turns = memory.flatMap((m) => compute.map((c) => c.rate / m.rate));
    const xs = around([...found.map((row) => row.intensity), ...turns], { log: true, part: 0.1 });
    const tops = [...compute.map(({ rate }) => rate), ...memory.map(({ rate }) => rate * xs[0])];
    const ys = around([...found.map((row) => row.flop_s), ...tops], { log: true, part: 0.08 });
    const groups = groupsOf(found);
    chart(host, {
      title: "Roofline: rate by operations a byte, under the ceilings measured on this card",
      hint: `${found.length} kernels; a column is a problem at one size, a mark one variant; a click opens a case`,
      summary: bestOfEach(run, groups),
      height: 380,
      legend: backends.map((text, i) => ({ text, ...look(i) })),
      x: { title: "FLOP a byte", format: asSize, log: true, range: xs },
      y: { title: "rate", format: asRate, log: true, range: ys },
      marks,
      dots: found.length > 200 ? 2.5 : 4,
      paint: (pen) => {
        const { px } = pen;
        const taken = found.map((row) => [pen.x(row.intensity) - 5 * px, pen.y(row.flop_s) - 5 * px, 10 * px, 10 * px]);
        for (const { rate, text } of memory) {
          const end = compute.length ? Math.min(fastest / rate, xs[1]) : xs[1];
          pen.line([[xs[0], xs[0] * rate], [end, end * rate]], "soft", { width: 1.5 });
          const middle = Math.sqrt(xs[0] * end);
          const least = pen.left + 7.5 * text.length * px;
          taken.push(pen.label(text, Math.max(pen.x(middle) - 6 * px, least), pen.y(middle * rate), "soft", "right"));
        }
        for (const [i, { rate, text }] of compute.entries()) {
          const start = memory.length ? rate / broadest : xs[0];
          pen.line([[Math.max(start, xs[0]), rate], [xs[1], rate]], "soft", { width: 1.5 });
          taken.push(pen.label(text, pen.right - 4 * px, pen.y(rate) + (i ? 19 * px : 0), "soft", "right"));
        }
        for (const group of groups) {
          if (group.length > 1) pen.line(group.map((row) => [row.intensity, row.flop_s]), "faint", { width: 0.75 });
        }
        for (const group of groups) nameColumn(pen, pointOf(run, group[0]), group, taken);
      },
    });
  }

  // Writes a column's name beside it, where nothing else stands; else its marks alone tell it, under the pointer.
  function nameColumn(pen, text, group, taken) {
    pen.ctx.font = fontOf(pen.px);
    const [width, height] = [pen.ctx.measureText(text).width, 15 * pen.px];
    const x = pen.x(group[0].intensity);
    const [high, low] = extent(group.map((row) => pen.y(row.flop_s)));
    const lines = [(high + low) / 2 + height / 2, low + height * 1.4, high - 4 * pen.px, low, high + height];
    const starts = [x + 8 * pen.px, x - width - 8 * pen.px, x - width / 2];
    const isFree = ([start, y]) =>
      start > pen.left && start + width < pen.right && y - height > pen.top && y < pen.bottom &&
      taken.every(([a, b, w, h]) => start + width < a || a + w < start || y < b || b + h < y - height);
    const place = lines.flatMap((y) => starts.map((start) => [start, y])).find(isFree);
    if (!place) return;
    taken.push([place[0], place[1] - height, width, height]);
    pen.label(text, ...place, "ink");
  }

  const pointOf = (run, row) => [row.problem, run.cases[row.case].point].filter(Boolean).join(" ");
  const bestOfEach = (run, groups) => {
    const best = groups.slice(0, 12).map((rows) => rows.reduce((a, b) => (b.ns < a.ns ? b : a)));
    return best.map((row) => `${pointOf(run, row)}: best ${row.ceiling || asRate(row.flop_s)}`).join("; ");
  };

  // Places kernels without declared flops by the bytes that they declare.
  function plotBytesAlone(host, run, rows) {
    const found = rows.filter((row) => row.scope === "kernel" && !known(row.intensity) && positive(row.share));
    const groups = groupsOf(found);
    if (!groups.length) return;
    const mark = (row) => ({
      x: 100 * row.share,
      y: 0,
      ...(tone(row.state) === "bad" ? { colour: "bad", shape: "diamond" } : { colour: "accent" }),
      text: `${row.label}: ${row.ceiling}${row.state ? `, ${row.state}` : ""}`,
      open: () => go(run, row.case),
    });
    const lines = groups.map((group) => ({ name: pointOf(run, group[0]), marks: group.map(mark) }));
    chartOfLines(host, lines, 100, {
      title: "By bytes alone: part of the limit that kernels without declared flops reach",
      hint: `${found.length} kernels; a row is a problem at one size; a diamond is slower; a click opens a case`,
      summary: bestOfEach(run, groups),
      height: 110 + 28 * groups.length,
      x: { title: "% of the limit", format: digits, range: [0, Math.max(105, ...found.map((row) => 105 * row.share))] },
      dots: 4,
      lift: 0.15,
    });
  }

  const groupsOf = (rows) => [...Map.groupBy(rows, (row) => row.group).values()];

  const OUTLYING = 6; // times the median, beyond which a bar would make those of the others one

  // Shows the variants of one problem at one size, or all its sizes.
  function showVariants(host, run, rows) {
    const { view } = run;
    const timed = rows.filter(counts);
    const problems = [...new Set(timed.map((row) => row.problem))];
    if (!problems.length) return host.replaceChildren(el("p", { class: "quiet" }, "No time is left here."));
    const again = (changes) => {
      Object.assign(view, changes);
      showVariants(host, run, rows);
      host.querySelector(`[data-pick="${Object.keys(changes)[0]}"] :is(select, [aria-pressed=true])`)?.focus();
    };
    const worst = timed.reduce((a, b) => (b.rank < a.rank ? b : a));
    const problem = problems.includes(view.shownProblem) ? view.shownProblem : worst.problem;
    const ofProblem = timed.filter((row) => row.problem === problem);
    const sizes = bySize(run, ofProblem);
    const axis = longestAxis(run, ofProblem);
    const chosen = sizes.find(({ rows: [{ group }] }) => group === view.shownGroup);
    const wrong = groupsOf(ofProblem).find((group) => group.some((row) => tone(row.state) === "bad"));
    const group = chosen?.rows || wrong || sizes.at(-1).rows;
    const by = axis && view.by;
    const choices = sizes.map(({ text, rows: [{ group: value }] }) => [value, text]);
    if (axis) choices.push(["time", `time by ${axis}`]);
    host.replaceChildren(
      bestOf(run, timed),
      picks("shownProblem", "problem", problems.map((each) => [each, each]), problem, (value) => again({ shownProblem: value, shownGroup: null })),
      picks("shownGroup", "size", choices, by || group[0].group, (value) => again(value === "time" ? { by: value } : { shownGroup: value, by: null })),
    );
    const only = Object.entries(run.cases[group[0].case].sizes).map((size) => size.join("="));
    if (sizes.length === 1 && only.length) host.append(el("p", { class: "quiet" }, `All at ${only.join(" ")}.`));
    if (by) plotBySize(host, run, ofProblem, axis);
    else barsOf(host, run, group, again);
  }

  // Returns the rows of each size, the largest last.
  const bySize = (run, rows) =>
    groupsOf(rows).map((of) => ({ rows: of, text: run.cases[of[0].case].point || "its only size" })).sort((a, b) => collator.compare(a.text, b.text));

  // Says for each problem, at its largest size, which variants are best, and what a call of the best kernel costs.
  function bestOf(run, timed) {
    const fastest = (rows, scope) => rows.filter((row) => row.scope === scope).sort((a, b) => a.ns - b.ns)[0];
    const link = (row) => row && el("a", { href: linkTo(run, row.case) }, ...breakable(`${row.variant} ${run.cases[row.case].with}`));
    const cells = (rows) => {
      const group = bySize(run, rows).at(-1).rows;
      const [kernel, whole] = [fastest(group, "kernel"), fastest(group, "end_to_end")];
      const call = kernel && group.find((row) => row.case === kernel.case && row.scope === "end_to_end");
      const part = call && Math.min(1, kernel.ns / call.ns);
      const costs = call && (part < 0.5 ? `copies and host, ${digits(100 * (1 - part))} %` : `the kernel, ${digits(100 * part)} %`);
      return [pointOf(run, group[0]), link(kernel), kernel?.time, kernel?.ceiling, call?.time, costs, link(whole), whole?.time];
    };
    const titles = ["problem", "fastest kernel", ["time", true], ["of limit", true], ["its call", true], "mostly", "fastest call", ["time", true]];
    return tableOf(titles, [...Map.groupBy(timed, (row) => row.problem).values()].map(cells));
  }

  // Offers a few choices as buttons, and many as a list.
  function picks(name, label, choices, current, pick) {
    if (choices.length < 2) return "";
    const buttons = () => choices.map(([value, text]) => pressable(text, value === current, () => pick(value)));
    const list = () => {
      const options = choices.map(([value, text], i) => el("option", { value: i, selected: value === current }, text));
      return [el("select", { "aria-label": label, on: { change: (event) => pick(choices[event.target.value][0]) } }, ...options)];
    };
    return el("div", { class: "picks no-print", role: "group", "aria-label": label, "data-pick": name }, ...(choices.length > 14 ? list() : buttons()));
  }

  const pressable = (text, pressed, click) => el("button", { type: "button", "aria-pressed": String(pressed), on: { click } }, text);

  function barsOf(host, run, rows, again) {
    const scopes = [...new Set(rows.map((row) => row.scope))];
    const main = scopes.includes("kernel") ? "kernel" : scopes[0];
    const beside = scopes.find((scope) => scope === "end_to_end" && scope !== main) || scopes.find((scope) => scope !== main);
    const cases = [...Map.groupBy(rows, (row) => row.case)].map(([index, of]) => {
      const [first, second] = [main, beside].map((scope) => of.find((row) => row.scope === scope));
      return { index, first, second, ns: (first || second)?.ns };
    });
    const ranked = cases.filter((each) => each.ns).sort((a, b) => !a.first - !b.first || a.ns - b.ns);
    const middle = (name) => {
      const times = ranked.flatMap((each) => each[name]?.ns ?? []).sort((a, b) => a - b);
      const limit = OUTLYING * times[Math.floor((times.length - 1) / 2)];
      return { limit, most: Math.max(...times.filter((ns) => ns <= limit)) };
    };
    const [scale, scale2] = [middle("first"), middle("second")];
    const here = run.rows.filter((row) => row.group === rows[0].group);
    const best = Math.min(...here.filter((row) => row.scope === main && counts(row)).map((row) => row.ns));
    const wrong = [...new Map(here.filter((row) => DATA.barred.includes(row.state)).map((row) => [row.case, row])).values()];
    const barred = wrong.slice(0, FEW).flatMap((row) => [el("a", { href: linkTo(run, row.case) }, ...breakable(row.variant)), " ", badge(row.state), " "]);
    if (wrong.length) host.append(el("p", { class: "quiet" }, "Without a time that counts: ", ...barred, wrong.length > FEW && `and ${wrong.length - FEW} more`));
    const far = ranked.filter(({ first }) => first?.ns > scale.limit);
    const shown = run.view.outliers ? ranked : ranked.filter((each) => !far.includes(each));
    const limits = [...new Set(rows.filter((row) => row.scope === main && row.of_limit).map((row) => row.of_limit))];
    const against = rows.map((row) => run.cases[row.case].against).find(Boolean);
    const bar = (row, { most, limit }) => {
      if (!row) return el("td", { class: "bar quiet" }, "–");
      const drawn = el("i", { class: tone(row.state) === "bad" ? "bad" : row.ns > limit && "far" });
      drawn.style.width = `${Math.min(100, (100 * row.ns) / most)}%`;
      return el("td", { class: "bar" }, drawn);
    };
    const number = (text, more = "") => el("td", { class: `number ${more}` }, text || "–");
    const limit = ({ reached, ceiling } = {}) => (limits.length === 1 ? reached : ceiling);
    const speedUp = against && [`× ${against}`, (row) => number(row?.speedup)];
    // Of each column the title, and its cell for the row of a scope.
    const columns = [
      [spoken(main), (row) => bar(row, scale)],
      ["time", (row) => number(row?.time)],
      ["× best", (row) => number(row && asTimes(row.ns / best))],
      [`% of ${limits.length === 1 ? limits[0] : "limit"}`, (row) => number(limit(row))],
      speedUp,
    ].filter(Boolean);
    const others = beside ? [[spoken(beside), (row) => bar(row, scale2)], ["time", (row) => number(row?.time, "second")], speedUp].filter(Boolean) : [];
    const body = shown.map(({ index, first, second }) => {
      const one = run.cases[index];
      const worst = [first, second].find((row) => row && TONES.get(row.state) === "bad");
      const name = el("th", { scope: "row" }, el("a", { href: linkTo(run, index) }, ...breakable(one.variant)), " ", el("small", {}, one.with), " ", worst && badge(worst.state));
      return el("tr", {}, name, ...columns.map(([, cell]) => cell(first)), ...others.map(([, cell]) => cell(second)));
    });
    const bars = [columns[0], others[0]];
    const head = [...columns, ...others].map((column) => el("th", { scope: "col", class: !bars.includes(column) && "number" }, column[0]));
    host.append(scrolled("variants", { class: "bars" }, [el("th", { scope: "col" }, "variant"), ...head], body));
    if (!far.length) return;
    const times = far.map((each) => asTimes(each.first.ns / best));
    const { outliers } = run.view;
    const text = outliers ? "hide what is far slower" : `show ${far.length} far slower: ${[...new Set([times[0], times.at(-1)])].join(" to ")} the best`;
    host.append(el("p", { "data-pick": "outliers" }, pressable(text, Boolean(outliers), () => again({ outliers: !outliers }))));
  }

  const asTimes = (value) => (value >= 9.95 ? `${value.toFixed(0)}×` : `${value.toFixed(2)}×`);

  // Returns the axis along which rows have most sizes, if they have several.
  function longestAxis(run, rows) {
    const sizes = Map.groupBy(rows.flatMap((row) => Object.entries(run.cases[row.case].sizes)), ([name]) => name);
    const counts = [...sizes].map(([name, of]) => [name, new Set(of.map(([, size]) => size)).size]);
    const [name, count] = counts.sort((a, b) => b[1] - a[1])[0] ?? [];
    return count > 1 && name;
  }

  function plotBySize(host, run, rows, axis) {
    const used = rows.filter((row) => run.cases[row.case].sizes[axis]);
    const main = used.some((row) => row.scope === "kernel") ? "kernel" : used[0].scope;
    const timed = new Set(used.filter((row) => row.scope === main).map((row) => row.case));
    const points = used.filter((row) => row.scope === main || !timed.has(row.case)).map((row) => {
      const one = run.cases[row.case];
      const others = Object.entries(one.sizes).filter(([name]) => name !== axis && one.point.includes(`${name}=`)).map((size) => size.join("="));
      const label = [one.variant, one.with, ...others, row.scope === main ? "" : row.scope].filter(Boolean).join(" ");
      return { label, x: one.sizes[axis], y: row.ns, open: () => go(run, row.case), text: `${label}, ${axis}=${one.sizes[axis]}: ${asTime(row.ns)}` };
    });
    const lines = [...Map.groupBy(points, (point) => point.label)].map(([label, line]) => [label, line.sort((a, b) => a.x - b.x)]);
    const series = lines.sort((a, b) => b[1].at(-1).x - a[1].at(-1).x || a[1].at(-1).y - b[1].at(-1).y).slice(0, FEW);
    const marks = series.flatMap(([, line], i) => line.map((point) => ({ ...point, ...look(i) })));
    const ends = ([label, line]) => `${label}: ${asTime(line[0].y)} at ${line[0].x} to ${asTime(line.at(-1).y)} at ${line.at(-1).x}`;
    chart(host, {
      title: `Time by ${axis}, ${main}`,
      hint: `less is faster; a click opens a case${lines.length > FEW ? `; the ${FEW} fastest of ${lines.length} at the largest size: search for others` : ""}`,
      summary: series.map(ends).join("; "),
      height: 360,
      legend: series.map(([text], i) => ({ text, ...look(i) })),
      x: fitting(marks.map((mark) => mark.x), axis, asSize),
      y: fitting(marks.map((mark) => mark.y), "time", asTime),
      marks,
      dots: 4,
      paint: (pen) => series.forEach(([, line], i) => pen.line(line.map(({ x, y }) => [x, y]), look(i).colour, { width: 1.5 })),
    });
  }

  // --- the table of cases --------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });
  const COLUMNS = [
    { title: "verdict", text: "state", number: "rank", plain: true },
    { title: "case", text: "label" },
    { title: "change", text: "change", number: "ratio" },
    { title: "time", text: "time", number: "ns" },
    { title: "of limit", text: "ceiling", number: "share" },
    { title: "±", text: "uncertainty", number: "half", minor: true },
    { title: "rate", text: "rate", number: "per_s", minor: true },
    { title: "speed-up", text: "speedup", number: "factor", minor: true },
    { title: "error", text: "error", number: "error_n", minor: true, least: true },
  ];

  const PLAIN = { text: "", state: "", backend: "", problem: "", scope: "", sort: 0, down: false };

  function prepared(run) {
    if (run.ready) return run;
    run.ready = true;
    run.cases = records(run.cases);
    run.places = new Map(run.cases.map((each, i) => [each.id, i]));
    run.rows = records(run.rows);
    for (const one of run.cases) Object.assign(one, { scopes: [], sizes: Object.fromEntries(one.sizes) });
    for (const scope of records(run.scopes)) run.cases[scope.case].scopes.push(scope);
    const spaced = (...texts) => texts.filter(Boolean).join(" ");
    run.rows.forEach((row, place) => {
      const { id, nodeid, problem, backend, variant, point, with: settings } = run.cases[row.case];
      const label = spaced(id, row.scope);
      Object.assign(row, { place, problem, backend, variant, label, sought: `${label} ${nodeid} ${row.state}`.toLowerCase() });
      row.ceiling = spaced(row.reached, row.of_limit);
      row.size = spaced(point, settings, row.scope && row.scope !== "kernel" && `· ${row.scope}`);
    });
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

  const classes = ({ minor, least }, number) => [number && "number", minor && "minor", least && "least"].filter(Boolean).join(" ");

  function rowOf(run, row) {
    const name = el("a", { href: linkTo(run, row.case) }, ...breakable(`${row.problem}/${row.variant}`));
    const cells = COLUMNS.map((column) => {
      if (column.title === "case") return el("td", { class: "case" }, name, " ", el("span", { class: "quiet" }, row.size));
      if (column.title === "verdict") return el("td", {}, badge(row.state));
      if (column.title === "change") return el("td", { class: "number" }, row.change, row.interval && el("small", { title: "90 % interval" }, ` ${row.interval}`));
      return el("td", { class: classes(column, column.number) }, (column.title === "time" && row.way) || (row[column.text] ?? ""));
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
      const button = el("button", { type: "button", on: { click: sort } }, title);
      return el("th", { scope: "col", class: classes(column, column.number && !column.plain) }, button);
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

  function failureCard(run, card, i) {
    const line = (title, ...parts) => parts.some(Boolean) && el("div", { class: "line" }, el("dt", {}, title), el("dd", {}, ...parts));
    const sizes = (card.sizes.length ? card.sizes : [""]).flatMap((size, at) => [at ? ", " : " ", size && linked(run, card.cases[at], size)]);
    const name = card.cases.length && !card.sizes.length ? el("a", { href: linkTo(run, card.cases[0]) }, ...named(card.name)) : el("span", {}, ...named(card.name));
    const scope = run.cases[card.cases[0]]?.scopes.find((each) => each.timing[0] === card.scope);
    const what = [card.times && change(card), card.what.length && told(card.what, card.times ? "span" : "b")];
    const since = [...card.since.map((text) => el("p", {}, text)), scope && card.times && pastOf(run, card, scope)];
    const remedies = [command("repeat", card.repeat), card.accept && command("accept", card.accept), card.advice && el("p", { class: "quiet" }, card.advice)];
    const title = el("h2", {}, badge(card.kind, "filled"), " ", name, el("small", {}, ...sizes, card.scope && ` · ${spoken(card.scope)}`));
    const answers = [
      el("dl", {}, line(card.times ? "from → to" : "what", ...what), line("why", card.why.length && listOf(card.why))),
      el("dl", {}, line("since when", ...since)),
      el("dl", { class: "both" }, line("what to do", ...remedies)),
    ];
    return el("article", { class: "card", id: `failure-${i + 1}`, tabindex: "-1" }, title, el("div", { class: "answers" }, ...answers));
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
    const percent = el("b", { class: tone(card.kind) }, card.percent);
    const times = el("p", { class: "big" }, card.times, " ", percent, " ", el("small", { title: "90 % interval" }, card.interval));
    return el("div", {}, times, known(card.share_before) && limits());
  }

  function command(title, text) {
    const code = el("code", { tabindex: "0" }, ...text.split(/( --[\w-]+)/).flatMap((part, i) => (i % 2 ? [" ", el("span", { class: "whole" }, part.trim())] : named(part))));
    const copy = async (event) => {
      const button = event.currentTarget;
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected"; // a page from a file may be refused the clipboard
      }
    };
    return el("div", { class: "command" }, el("span", { class: "quiet" }, title), code, el("button", { type: "button", class: "no-print", "aria-label": `Copy: ${title}`, on: { click: copy } }, "Copy"));
  }

  // Draws a time's recorded sessions and those of this run.
  function pastOf(run, card, scope) {
    const newest = Math.max(...scope.sessions.map(([, , epoch]) => (recorded(epoch) ? epoch : -1)));
    const sessions = scope.sessions.filter(([, , epoch]) => !recorded(epoch) || epoch === newest);
    const points = sessions.map(([moment, of, epoch, ns]) => ({ y: ns, role: recorded(epoch) ? "recorded" : epoch, day: run.moments[moment].slice(0, 10), card: of }));
    const past = points.filter((point) => point.role === "recorded");
    if (!past.length) return "";
    const roles = new Set(points.map((point) => point.role));
    const [least, most] = extent(past.map((point) => point.y));
    const band = known(card.limit_at) && [card.before_ns / (1 + card.limit_at), card.before_ns * (1 + card.limit_at)];
    const on = new Set(past.map((point) => point.card)).size;
    const span = past[0].day === past.at(-1).day ? past[0].day : `${past[0].day} to ${past.at(-1).day}`;
    const title = `Recorded sessions took ${asTime(least)} to ${asTime(most)}; this run ${card.times}`;
    const key = [
      `● ${past.length} recorded on ${on} ${on === 1 ? "card" : "cards"}, ${span}`,
      "◆ this run",
      roles.has("confirming") && "□ sessions that confirm",
      roles.has("further") && "△ further sessions",
      band && `band: ±\u00a0${card.threshold}`,
    ];
    return el("div", {}, small(points, { format: asTime, band, tone: tone(card.kind), title }), el("p", { class: "quiet key" }, key.filter(Boolean).join(" · ")));
  }

  // Draws a few points in their order as a small picture, in which this run's stand apart.
  function small(points, { format, band, levels = [], tone: colour = "", title, height = 120 }) {
    const [width, left, right, top] = [420, 58, 10, 10];
    const [low, high] = around([...points.map((point) => point.y), ...(band || [])], { part: 0.08 });
    const x = (i) => left + ((i + 0.5) * (width - left - right)) / points.length;
    const y = (value) => top + ((high - value) * (height - 2 * top)) / (high - low);
    const box = band && { x: left, width: width - left - right, y: y(band[1]), height: Math.max(y(band[0]) - y(band[1]), 1) };
    const ends = extent(points.map((point) => point.y));
    const same = format(ends[0]) === format(ends[1]);
    const grid = [...new Set(ends)].flatMap((value) => [
      svg("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, same && value > ends[0] ? asChange(value / ends[0]) : format(value)),
    ]);
    const lines = levels.map(([from, to, level]) => svg("path", { class: "level", d: `M${x(from) - 6} ${y(level)}H${x(to) + 6}` }));
    const marks = points.map((point, i) => {
      const shape = { measured: "M0-6L6 0L0 6L-6 0Z", confirming: "M-4-4H4V4H-4Z", further: "M0-5L5 4H-5Z" }[point.role];
      if (!shape) return svg("circle", { class: "recorded", cx: x(i), cy: y(point.y), r: 4 });
      return svg("path", { class: point.role, d: shape, transform: `translate(${x(i)} ${y(point.y)})` });
    });
    const options = { class: `small ${colour}`, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title };
    return svg("svg", options, box && svg("rect", { class: "band", ...box }), ...grid, ...lines, ...marks);
  }

  function otherChanges(run) {
    const entry = ([kind, cases, by, cause]) =>
      el("li", {}, el("a", { href: linkToTimes(run, { state: kind }), class: "plain" }, badge(kind)), " ", ...named(cases), " ", el("b", {}, by), cause && el("span", { class: "quiet" }, ` ${cause}`));
    return el("ul", { class: "others" }, ...run.others.map(entry));
  }

  // --- several runs --------------------------------------------------------------------------------

  // Compares the times of all runs in this page, the newest with the one before it, large changes first.
  function compareRuns() {
    const runs = [...DATA.runs].reverse().map(prepared); // oldest first
    const times = new Map();
    runs.forEach((run, i) => {
      for (const row of run.rows) if (row.scope) times.set(row.label, (times.get(row.label) || new Map()).set(i, row));
    });
    const several = [...times].filter(([, of]) => of.size > 1).map(([label, of]) => {
      const [[, before], [last, now]] = [...of].slice(-2);
      const alike = counts(before) && counts(now) && before.like === now.like;
      return { label, of, alike, href: linkTo(runs[last], now.case), ratio: now.ns / before.ns };
    });
    const rows = several.filter(({ alike }) => alike).sort((a, b) => moved(b) - moved(a));
    const apart = several.length - rows.length;
    const cells = ({ label, of, href, ratio }) => [el("a", { href }, ...named(label)), asChange(ratio), ...runs.map((_, i) => of.get(i)?.time)];
    const titles = ["case", ["change", true], ...runs.map((run) => [run.name, true])];
    const leftOut = apart ? ` ${apart} are left out: they have no valid time in both, or differ in timer, cache, problem version or device model.` : "";
    return section(
      "Runs compared",
      el("p", { class: "quiet" }, `${rows.length} times are in more than one run; the change is of the last two, the largest first. A difference between two runs is no verdict: sessions differ.${leftOut}`),
      ...fewFirst(rows, (part) => tableOf(titles, part.map(cells))),
    );
  }

  // --- the two pages -------------------------------------------------------------------------------

  function overview(run) {
    const { view } = run;
    const plots = [];
    const heading = el("span", { class: "quiet", role: "status" });
    const cases = el("div", { id: "cases", tabindex: "-1" });
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
    const compared = run.rows.some((row) => known(row.ratio));
    const timed = run.rows.some((row) => positive(row.ns));
    const on_roof = run.rows.some((row) => row.scope === "kernel" && known(row.share));
    const [word, rest] = run.headline;
    const brief = run.failures.map((card, i) => {
      const click = (event) => {
        event.preventDefault();
        show(`failure-${i + 1}`);
      };
      const link = el("a", { href: `#failure-${i + 1}`, on: { click } }, badge(card.kind), " ", ...named(card.name));
      return el("li", {}, link, " ", card.times ? `${card.times}, ${card.percent}` : "");
    });
    const part = (title, count, children) => count && folded(title, false, (body) => body.append(...children()));
    const numbered = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
    main.replaceChildren(
      ...[
        el("h1", {}, el("span", { class: tone(word) }, rest ? `${word}:` : word), rest ? ` ${rest}` : ""),
        el("p", { class: "quiet" }, run.context.join(" · ")),
        el("p", { class: "quiet tally" }, run.verdict),
        brief.length > 1 && el("ul", { class: "brief no-print" }, ...brief),
        run.problems.length && section("Went wrong", listOf(run.problems)),
        ...run.failures.slice(0, FEW).map((card, i) => failureCard(run, card, i)),
        part(`${run.failures.length - FEW} more failures`, run.failures.length > FEW, () => run.failures.slice(FEW).map((card, i) => failureCard(run, card, i + FEW))),
        run.others.length && otherChanges(run),
        part(numbered(run.notes.length, "note"), run.notes.length, () => [notes(run)]),
        part("To record and to accept", run.closing.length, () => run.closing.map(([text, line]) => (line ? command(text, line) : el("p", {}, text)))),
        part("Machine and libraries", run.facts.length, () => [facts(run.facts)]),
        part(`Did not run: ${numbered(run.skips.length, "reason")}`, run.skips.length, () => [listOf(run.skips)]),
        DATA.runs.length > 1 && compareRuns(),
        el("h2", {}, "Cases"),
        filter,
        timed && plotted("How fast are the variants?", showVariants),
        on_roof && plotted("How near to the limits of the card?", plotRoofline),
        (compared || run.canaries.length > 0) && plotted("Is the machine as recorded?", plotShifts),
        DATA.trends.series.length > 0 && plotted("Since when? Times over sessions", plotTrends),
        cases,
        el("p", { class: "quiet no-print keys" }, "Keys: / searches, j and k go through the rows, Enter opens a case, Escape comes back. In a plot, dragging zooms and a double click shows all again."),
      ].filter(Boolean),
    );
    const showRows = caseTable(run, cases, heading);
    showRows();
    document.title = run.headline.filter(Boolean).join(": ");
  }

  function show(id) {
    const place = document.getElementById(id);
    place.scrollIntoView();
    place.focus({ preventScroll: true });
  }

  const facts = (pairs) => el("dl", {}, ...pairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));

  function notes(run) {
    const entry = ([text, who]) => {
      const links = who.slice(0, 3).flatMap(([index, label], i) => [i ? ", " : "", linked(run, index, label)]);
      const more = who.length > 3 ? ` and ${who.length - 3} more` : "";
      return el("li", {}, ...links, more, el("div", { class: "reason" }, text));
    };
    return el("ul", { class: "told" }, ...run.notes.slice(0, FIRST).map(entry));
  }

  function casePage(run, index) {
    const one = run.cases[index];
    const own = run.rows.filter((row) => row.case === index);
    const order = [...new Set(filtered(run).map((row) => row.case))];
    const at = order.indexOf(index);
    const step = (by, text) => {
      const next = order[at + by];
      return at >= 0 && next !== undefined ? el("a", { href: linkTo(run, next), rel: by < 0 ? "prev" : "next" }, text) : "";
    };
    const scopes = one.scopes.map((scope) => ({ ...scope, ...own.find((row) => row.scope === scope.timing[0]) }));
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
      facts(one.facts),
      told.length ? section("In words", el("ul", { class: "told" }, ...told)) : "",
      ...tables.filter(([, , rows]) => rows.length).map(([title, ...table]) => section(title, tableOf(...table))),
      section("Repeat it", command("repeat", one.command)),
      ...scopes.map((scope) => scopeSection(run, one, scope)),
      one.epochs.length ? section("Epochs of the record", tableOf(["epoch", "opened", "reason"], one.epochs.map((each, i) => [String(i + 1), ...each]))) : "",
    );
    document.title = `${one.id} · gpukern`;
  }

  const TIME_FIGURES = [
    ["time", "time"], ["95 % interval", "range"], ["±", "uncertainty"], ["samples", "n"], ["rate", "rate"], ["of ceiling", "ceiling"],
    ["speed-up", "speedup"], ["change", "change"], ["90 % interval", "interval"], ["threshold", "threshold"],
  ];
  const TIMES = ["scope", "timer", "cache", ...TIME_FIGURES.map(([title]) => [title, true]), "verdict"];

  function scopeSection(run, one, scope) {
    const [name, timer, cache] = scope.timing;
    const plots = el("div", { class: "plots" });
    if (scope.distribution) plotDistribution(plots, scope);
    if (scope.series) plotOverTime(plots, scope);
    if (scope.sessions.length > 1) plotSessions(plots, run, scope);
    if (scope.pairs?.length) plotPairs(plots, scope);
    const reason = !one.told.some(([, text]) => text === scope.reason) && scope.reason;
    const [title, rows, notes] = scope.work ?? [];
    const whole = (row) => [...row.slice(0, -1), ...run.launched[row.at(-1)]];
    const work = title ? [el("h3", {}, title), tableOf(run.work_titles, rows.map(whole)), listOf(notes)] : [];
    const words = [el("p", { class: "quiet" }, scope.told), reason && el("p", {}, badge(scope.state), " ", reason)];
    return section(`${name} by ${timer}, ${cache}`, ...words, plots, ...work);
  }

  // --- where the reader is -------------------------------------------------------------------------

  const placeIn = (run, place) => `#${new URLSearchParams([...(run.number ? [["run", run.number]] : []), ...place])}`;
  const linkTo = (run, index) => placeIn(run, [["case", run.cases[index].id]]);
  const go = (run, index) => location.assign(linkTo(run, index));
  const linked = (run, index, text) => (known(index) ? el("a", { href: linkTo(run, index) }, text) : text);

  // Returns a link to the table with search, filters and order as they are, or as given.
  function linkToTimes(run, view = run.view) {
    const given = Object.keys(PLAIN).filter((name) => known(view[name]) && view[name] !== PLAIN[name]);
    return placeIn(run, given.map((name) => [name, name === "sort" ? COLUMNS[view.sort].title : view[name]]));
  }

  const remember = (run) => history.replaceState(null, "", linkToTimes(run));

  let last = null;

  function route() {
    const place = new URLSearchParams(location.hash.slice(1));
    const run = prepared(DATA.runs[Number(place.get("run"))] || DATA.runs[0]);
    const index = run.places.get(place.get("case"));
    if (last && !last.onCase) last.run.view.scroll = last.scroll;
    chosen.value = String(run.number);
    if (index === undefined) {
      for (const name of ["text", ...CHOICES]) run.view[name] = place.get(name) || "";
      run.view.sort = Math.max(0, COLUMNS.findIndex(({ title }) => title === place.get("sort")));
      run.view.down = place.get("down") === "true";
      overview(run);
      if (last?.onCase) document.querySelector(`.cases a[href="${CSS.escape(last.hash)}"]`)?.focus({ preventScroll: true });
      if (last && !last.onCase && last.run === run && place.size) show("cases");
      else setTimeout(() => window.scrollTo(0, run.view.scroll), 100); // once the plots above are drawn
    } else {
      casePage(run, index);
      document.querySelector("h1").focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
    last = { run, onCase: index !== undefined, scroll: window.scrollY, hash: location.hash };
  }

  DATA.runs.forEach((run, number) => Object.assign(run, { number }));
  const choose = () => location.assign(chosen.value === "0" ? "#" : `#run=${chosen.value}`);
  const options = DATA.runs.map((run) => el("option", { value: run.number }, run.name));
  const chosen = el("select", { id: "run", "aria-label": "run", on: { change: choose } }, ...options);
  document.querySelector("header").append(DATA.runs.length > 1 ? chosen : el("span", {}, DATA.runs[0].name));

  function walk(by) {
    const links = [...document.querySelectorAll(".cases tbody a")];
    const next = links[links.indexOf(document.activeElement) + by];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
    const search = document.getElementById("search");
    const click = (rel) => document.querySelector(`a[rel=${rel}]`)?.click();
    if (typing && event.key === "Escape") {
      event.preventDefault(); // a browser would empty the search, and keep what it chose
      document.activeElement.blur();
    } else if (!typing && event.key === "/" && search) {
      event.preventDefault();
      search.focus();
    } else if (!typing) {
      const keys = { Escape: () => click("up"), ArrowLeft: () => click("prev"), ArrowRight: () => click("next"), j: () => walk(1), k: () => walk(-1) };
      keys[event.key]?.();
    }
  });
  addEventListener("scroll", () => { if (last) last.scroll = window.scrollY; }, { passive: true });
  addEventListener("hashchange", route);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  // Paper is light, whatever the screen is.
  for (const [event, printed] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      if (printed) for (const box of document.querySelectorAll("details")) openNow(box);
      document.documentElement.classList.toggle("printed", printed);
      redrawCharts();
    });
  }
  route();
})();
