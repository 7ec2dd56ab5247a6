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

  function el(name, options, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(options || {})) {
      if (key === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
    }
    made.append(...children.filter(Boolean));
    return made;
  }

  function svg(name, options) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(options)) made.setAttribute(key, value);
    return made;
  }

  // A table crosses in blocks of columns: all values, or those that differ and the place of each row's among them.
  const records = (blocks) =>
    blocks.flatMap(({ count, columns }) => {
      const rows = Array.from({ length: count }, () => ({}));
      for (const [name, { values, distinct, places }] of Object.entries(columns)) {
        rows.forEach((row, i) => {
          row[name] = values ? values[i] : distinct[places[i]];
        });
      }
      return rows;
    });

  DATA.trends.series = records(DATA.trends.series);

  function digits(value) {
    return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  }

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

  // Shows what is in it once it is opened: plots need a width, and thousands of them time.
  function folded(title, open, fill) {
    const body = el("div");
    const box = el("details", { open }, el("summary", {}, title), body);
    let filled = false;
    const opened = () => {
      if (!box.open || filled) return;
      filled = true;
      fill(body);
    };
    box.addEventListener("toggle", opened);
    box.openNow = () => {
      box.open = true;
      opened();
    };
    return box;
  }

  // Returns a table without its empty columns. A column is a name, or a name and whether it is numeric.
  function tableOf(columns, rows) {
    const names = columns.map((column) => [column].flat());
    const kept = names.map((_, i) => i).filter((i) => rows.some((row) => known(row[i]) && row[i] !== ""));
    const cells = (tag, row) =>
      kept.map((i) => el(row[i] === "" ? "td" : tag, { class: names[i][1] && "number" }, row[i] ?? ""));
    const titles = names.map(([name]) => name);
    return el(
      "div",
      { class: "wide", tabindex: "0", role: "group", "aria-label": titles.filter(Boolean).join(", ") },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...cells("th", titles))),
        el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row)))),
      ),
    );
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
  const charts = new Set();

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
  }

  // Draws `spec.marks` and `spec.paint` between uPlot's axes. A mark is {x, y, low, high, text, colour,
  // shape, open}: `open` runs on a click. Dragging zooms, a double click shows everything again.
  function chart(host, spec) {
    const summary = [spec.title, spec.summary, spec.hint].filter(Boolean).join(". ");
    const box = el("div", { class: "plot", role: "img", "aria-label": summary });
    const readout = el("output", {}, spec.hint || "");
    const figure = el("figure", {}, el("figcaption", {}, spec.title), box, readout);
    if (spec.legend) figure.insertBefore(legendOf(spec.legend), box);
    host.append(figure);
    const own = { box, width: 0, draw: null };
    let plot = null;
    own.draw = () => {
      own.width = box.clientWidth;
      if (plot) plot.destroy();
      plot = new uPlot(uplotOptions(spec, own, readout), [spec.x.range, [null, null]], box);
      box.dataset.marks = spec.marks.length;
    };
    own.draw();
    charts.add(own);
    widths.observe(box);
    return figure;
  }

  const widths = new ResizeObserver(() => {
    for (const own of charts) if (own.box.clientWidth && own.box.clientWidth !== own.width) own.draw();
  });

  function forgetCharts(within) {
    for (const own of charts) {
      if (!within.contains(own.box)) continue;
      widths.unobserve(own.box);
      charts.delete(own);
    }
  }

  function redrawCharts() {
    for (const own of charts) if (own.box.clientWidth) own.draw();
  }

  // The swatches are drawings, not canvases, so that they follow a change of colours.
  function legendOf(entries) {
    const swatch = ({ colour, shape, hollow }) => {
      const drawing = svg("svg", { viewBox: "-14 -14 28 28", "aria-hidden": "true" });
      const corners = CORNERS[shape];
      const form = corners
        ? svg("polygon", { points: corners.map(([x, y]) => `${9 * x},${9 * y}`).join(" ") })
        : svg("circle", { r: 9 });
      form.style.fill = hollow ? "none" : `var(--${colour})`;
      form.style.stroke = `var(--${colour})`;
      form.style.strokeWidth = hollow ? 2.5 : 0;
      drawing.append(form);
      return drawing;
    };
    return el("p", { class: "legend" }, ...entries.map((each) => el("span", {}, swatch(each), each.text)));
  }

  function trace(ctx, shape, x, y, r) {
    ctx.beginPath();
    if (!CORNERS[shape]) ctx.arc(x, y, r, 0, 2 * Math.PI);
    else CORNERS[shape].forEach(([dx, dy]) => ctx.lineTo(x + r * dx, y + r * dy));
    ctx.closePath();
  }

  function uplotOptions(spec, own, readout) {
    const paint = colours();
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = (side, { title, format, log, whole, space }) => ({
      label: title,
      labelFont: font,
      labelSize: 20,
      font,
      stroke: () => paint.soft,
      grid: { stroke: () => paint.grid, width: 1 },
      ticks: { stroke: () => paint.grid, width: 1 },
      values: (u, found) => found.map((value) => (known(value) ? format(value) : "")),
      ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000], space: space || 40 } : {}),
      ...(log ? { splits: (u, i, low, high) => decades(low, high), filter: (u, found) => found } : {}),
      ...(side === "x" ? { size: 32 } : { size: (u, texts) => 24 + 7 * Math.max(3, ...(texts || []).map((t) => t.length)) }),
    });
    const scale = ({ log }) => ({ time: false, auto: false, range: (u, low, high) => [low, high], ...(log ? { distr: 3 } : {}) });
    const everything = (u) =>
      u.batch(() => {
        u.setScale("x", { min: spec.x.range[0], max: spec.x.range[1] });
        u.setScale("y", { min: spec.y.range[0], max: spec.y.range[1] });
      });
    const nearest = (u) => {
      const { left, top } = u.cursor;
      if (left < 0) return null;
      let found = null;
      let least = REACH;
      for (const mark of spec.marks) {
        const away = Math.hypot(u.valToPos(mark.x, "x") - left, u.valToPos(mark.y, "y") - top);
        if (away < least) [found, least] = [mark, away];
      }
      return found;
    };
    let under = null;
    return {
      width: Math.max(own.width, 200),
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
        ready: [
          (u) => {
            everything(u);
            u.over.addEventListener("click", () => under && under.open && !u.select.width && under.open());
          },
        ],
        setCursor: [
          (u) => {
            under = nearest(u);
            readout.textContent = under ? under.text : spec.hint || "";
            u.over.style.cursor = under && under.open ? "pointer" : "";
          },
        ],
        draw: [(u) => drawAll(u, spec, paint)],
      },
    };
  }

  function drawAll(u, spec, paint) {
    const { ctx } = u;
    const px = uPlot.pxRatio;
    const pen = {
      ctx, px, paint,
      x: (value) => u.valToPos(value, "x", true),
      y: (value) => u.valToPos(value, "y", true),
      box: u.bbox,
      line(points, colour, { width = 1, dash = [] } = {}) {
        ctx.beginPath();
        points.forEach(([x, y]) => ctx.lineTo(pen.x(x), pen.y(y)));
        ctx.strokeStyle = paint[colour];
        ctx.lineWidth = width * px;
        ctx.setLineDash(dash.map((each) => each * px));
        ctx.stroke();
        ctx.setLineDash([]);
      },
      label(text, x, y, colour, align = "left") {
        ctx.font = `${12 * px}px ${getComputedStyle(document.body).fontFamily}`;
        ctx.fillStyle = paint[colour];
        ctx.textAlign = align;
        ctx.textBaseline = "bottom";
        ctx.fillText(text, x, y - 3 * px);
        const { width } = ctx.measureText(text);
        return [align === "right" ? x - width : x, y - 17 * px, width, 15 * px];
      },
    };
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    if (spec.paint) spec.paint(pen);
    for (const mark of spec.marks) {
      if (known(mark.low) && known(mark.high)) pen.line([[mark.x, mark.low], [mark.x, mark.high]], mark.colour, { width: 1.5 });
    }
    if (spec.dots !== 0) {
      for (const mark of spec.marks) {
        trace(ctx, mark.shape || "circle", pen.x(mark.x), pen.y(mark.y), (spec.dots || 3.5) * px);
        ctx.fillStyle = paint[mark.hollow ? "ground" : mark.colour];
        ctx.fill();
        if (!mark.hollow) continue;
        ctx.strokeStyle = paint[mark.colour];
        ctx.lineWidth = 1.6 * px;
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  // Returns the places of ticks on a logarithmic axis: powers of ten, and between them where those are few.
  function decades(low, high) {
    const span = Math.log10(high / low);
    const steps = span > 4 ? [1] : span > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    const every = Math.ceil(span / 8);
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      if (power % every === 0) found.push(...steps.map((step) => step * 10 ** power));
    }
    return found.filter((value) => value >= low && value <= high);
  }

  // Returns a range around values, `part` of it free at each end.
  function around(values, { log = false, part = 0.06 } = {}) {
    const used = values.filter((value) => known(value) && (!log || value > 0));
    let [low, high] = [Infinity, -Infinity];
    for (const value of used) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low > high) return log ? [1, 10] : [0, 1];
    if (log) {
      const factor = Math.max((high / low) ** part, 1.15);
      return [low / factor, high * factor];
    }
    const margin = (high - low) * part || Math.abs(high) * 0.01 || 1;
    return [low - margin, high + margin];
  }

  // Says whether values differ so much that only a logarithmic axis shows them all.
  function isWide(values) {
    const used = values.filter(positive);
    return Math.max(...used) > 6 * Math.min(...used);
  }

  // --- the plots of a case -------------------------------------------------------------------------

  const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const CODE = Object.fromEntries([...ALPHABET].map((letter, i) => [letter, i]));

  // Two letters stand for one of 4096 steps from `low` to `high`.
  function unpacked(text, low, high) {
    const values = [];
    for (let i = 0; i < text.length; i += 2) {
      values.push(low + ((high - low) * (CODE[text[i]] * 64 + CODE[text[i + 1]])) / 4095);
    }
    return values;
  }

  function plotDistribution(host, scope) {
    const [low, high, counts, notes] = scope.distribution;
    const width = (high - low) / counts.length || Math.abs(low) * 0.001 || 1;
    const marks = counts.map((count, i) => ({
      x: low + (i + 0.5) * width,
      y: count,
      colour: "accent",
      text: `${asTime(low + i * width)} to ${asTime(low + (i + 1) * width)}: ${count} samples`,
    }));
    chart(host, {
      title: "Distribution of the samples",
      hint: `median ${scope.time} in its 95 % interval${notes ? `; ${notes}` : ""}`,
      x: { title: "time", format: asTime, range: [low - width / 2, low + (counts.length + 0.5) * width] },
      y: { title: "samples", format: digits, range: [0, Math.max(...counts) * 1.08] },
      marks,
      dots: 0,
      paint: (pen) => {
        pen.ctx.fillStyle = pen.paint.accent;
        const bottom = pen.y(0);
        marks.forEach((mark) => {
          const left = pen.x(mark.x - width / 2);
          const right = pen.x(mark.x + width / 2);
          pen.ctx.fillRect(left, pen.y(mark.y), Math.max(right - left - pen.px, pen.px), bottom - pen.y(mark.y));
        });
        medianBand(pen, scope, true);
      },
    });
  }

  function medianBand(pen, scope, upright) {
    if (!known(scope.ns)) return;
    const { left, top, width, height } = pen.box;
    const [low, high] = [scope.low_ns ?? scope.ns, scope.high_ns ?? scope.ns];
    pen.ctx.fillStyle = pen.paint.band;
    if (upright) pen.ctx.fillRect(pen.x(low), top, Math.max(pen.x(high) - pen.x(low), 1), height);
    else pen.ctx.fillRect(left, pen.y(high), width, Math.max(pen.y(low) - pen.y(high), 1));
    pen.ctx.fillStyle = pen.paint.ink;
    if (upright) pen.ctx.fillRect(pen.x(scope.ns) - pen.px / 2, top, pen.px, height);
    else pen.ctx.fillRect(left, pen.y(scope.ns) - pen.px / 2, width, pen.px);
  }

  function plotOverTime(host, scope) {
    const [count, stride, low, high, packed] = scope.series;
    const marks = unpacked(packed, low, high).map((y, i) => ({
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
      y: { title: "time", format: asTime, range: around([...marks.map((mark) => mark.y), scope.ns]) },
      marks,
      dots: marks.length > 60 ? 1.5 : 2.5,
      paint: (pen) => {
        pen.line(marks.map((mark) => [mark.x, mark.y]), "accent", { width: 0.75 });
        medianBand(pen, scope, false);
      },
    });
  }

  const recorded = (epoch) => typeof epoch === "number";
  const roomAbove = ([low, high]) => [low, high + 0.14 * (high - low)]; // for what is written there
  // What sessions of a run were measured for, as Python names it.
  const ROLES = {
    measured: { text: "this run", colour: "ink", shape: "diamond" },
    confirming: { text: "confirms", colour: "ink", shape: "square", hollow: true },
    further: { text: "further session", colour: "ink", shape: "triangle", hollow: true },
  };

  function plotSessions(host, run, scope) {
    const found = scope.sessions.map(([moment, card, epoch, ns, low, high]) => ({ moment, card, epoch, ns, low, high }));
    const cards = [...new Set(found.map((each) => each.card))];
    const named = (card) => (known(card) ? `card ${run.cards[card]}` : "no card named");
    const marks = found.map((each, i) => ({
      x: i + 1,
      y: each.ns,
      low: each.low,
      high: each.high,
      ...(recorded(each.epoch) ? look(cards.indexOf(each.card)) : ROLES[each.epoch]),
      text:
        `${recorded(each.epoch) ? `epoch ${each.epoch + 1}` : ROLES[each.epoch].text}, ${run.moments[each.moment]}: ` +
        `${asTime(each.ns)}, ${known(each.low) && known(each.high) ? `${asTime(each.low)} … ${asTime(each.high)}, ` : ""}${named(each.card)}`,
    }));
    const span = (epoch) => (recorded(epoch) ? `epoch ${epoch + 1}` : "this run");
    const past = found.filter((each) => recorded(each.epoch));
    const on = [...new Set(past.map((each) => each.card))];
    const begins = found.flatMap((each, i) => (!i || span(each.epoch) !== span(found[i - 1].epoch) ? [i] : []));
    const dated = (x) => {
      const each = found[Math.round(x) - 1];
      return each ? run.moments[each.moment].slice(0, 10) : "";
    };
    chart(host, {
      title: "Recorded sessions and this run",
      hint: `${found.length} sessions, oldest first`,
      legend: [
        ...on.map((card) => ({ text: named(card), ...look(cards.indexOf(card)) })),
        ...Object.entries(ROLES).flatMap(([role, each]) => (found.some(({ epoch }) => epoch === role) ? [each] : [])),
      ],
      x: { title: "session", format: dated, whole: true, space: 90, range: [0.4, found.length + 0.6] },
      y: { title: "time", format: asTime, range: roomAbove(around(found.flatMap((each) => [each.low, each.high, each.ns]))) },
      marks,
      dots: 4.5,
      paint: (pen) => {
        let free = Infinity; // what is left of a newer label
        for (const first of begins.reverse()) {
          const x = first ? pen.x(first + 0.5) : pen.box.left;
          const { epoch } = found[first];
          pen.ctx.fillStyle = pen.paint.soft;
          if (first) pen.ctx.fillRect(x, pen.box.top, pen.px, pen.box.height);
          const right = x > pen.box.left + 0.8 * pen.box.width;
          const end = right ? pen.box.left + pen.box.width : x;
          const text = span(epoch);
          const ends = right ? end : end + 7.5 * text.length * pen.px;
          if (ends > free) continue;
          free = end - (right ? 7.5 * text.length * pen.px : 0);
          pen.label(text, end + (right ? -4 : 4) * pen.px, pen.box.top + 16 * pen.px, "soft", right ? "right" : "left");
        }
      },
    });
  }

  function plotPairs(host, scope) {
    const points = scope.pairs.map(([base, head]) => ({ y: head / base, role: "recorded" }));
    const title = "Pairs of sessions, base and head in turn";
    const told = `${points.length} pairs; the band is the 90 % interval of their ratio, ${scope.interval}`;
    const band = known(scope.low) && [scope.low, scope.high];
    host.append(el("figure", {}, el("figcaption", {}, title), small(points, { format: asChange, band, title: `${title}: ${told}`, height: 200 }), el("output", {}, told)));
  }

  // --- the plots of all cases ----------------------------------------------------------------------

  const SHIFT = 0.05; // up to which a plot tells changes of single kernels apart

  // Shows for each class of kernel how its times moved together, and each time.
  function plotShifts(host, run, rows) {
    host.append(listOf(run.since), canaries(run));
    const found = rows.filter((row) => positive(row.ratio));
    if (!found.length) return;
    const classes = [...new Set([...Object.keys(run.shifts), ...found.map((row) => row.class || row.scope)])];
    const clip = (ratio) => Math.max(1 - SHIFT, Math.min(1 + SHIFT, ratio));
    const inClass = new Map();
    const marks = found.map((row) => {
      const line = classes.length - classes.indexOf(row.class || row.scope);
      const place = (inClass.get(line) || 0) + 1;
      inClass.set(line, place);
      return {
        x: clip(row.ratio),
        y: line - 0.3 + 0.1 * (place % 6),
        colour: tone(row.state),
        shape: clip(row.ratio) === row.ratio ? "circle" : "diamond",
        text: `${row.label}: ${row.change}${row.interval ? `, 90 %: ${row.interval}` : ""} ${row.state}`,
        open: () => go(run, row.case),
      };
    });
    const told = (name) => (run.shifts[name] ? `${name}: ${asChange(run.shifts[name][0])} [${run.shifts[name].slice(1).map(asChange).join(", ")}]` : name);
    chart(host, {
      title: "Shift of times since the record, by what limits them",
      hint: `${found.length} times; a line is the median of a class with its 95 % interval; a diamond lies beyond; a click opens a case`,
      summary: classes.map(told).join("; "),
      height: 90 + 56 * classes.length,
      x: { title: "change", format: asChange, range: [1 - 1.06 * SHIFT, 1 + 1.06 * SHIFT] },
      y: { title: "", format: () => "", whole: true, range: [0.4, classes.length + 0.8] },
      marks,
      dots: found.length > 200 ? 2.5 : 3.5,
      paint: (pen) => {
        pen.line([[1, 0], [1, classes.length + 1]], "soft");
        classes.forEach((name, i) => {
          const line = classes.length - i;
          pen.label(told(name), pen.box.left + 6 * pen.px, pen.y(line + 0.32), "ink");
          const of = run.shifts[name];
          if (!of) return;
          const [middle, low, high] = of.map(clip);
          pen.ctx.fillStyle = pen.paint.band;
          pen.ctx.fillRect(pen.x(low), pen.y(line + 0.3), Math.max(pen.x(high) - pen.x(low), pen.px), pen.y(line - 0.4) - pen.y(line + 0.3));
          pen.line([[middle, line - 0.4], [middle, line + 0.3]], "ink", { width: 2 });
        });
      },
    });
  }

  // Shows each case's series over sessions, those with a step first.
  function plotTrends(host, run, rows) {
    const labels = new Map(rows.map((row) => [row.label, row]));
    const first = ({ case: id, scope, change }) => (change ? -1 : labels.get(`${id} ${scope}`).rank);
    const found = DATA.trends.series.filter((each) => labels.has(`${each.case} ${each.scope}`)).sort((a, b) => first(a) - first(b));
    const picture = ({ case: id, scope, points, ns, steps, change }) => {
      const bounds = [0, ...steps.map(([place]) => place), ns.length];
      const levels = steps.length ? [steps[0][1], ...steps.map(([, , after]) => after)].map((level, i) => [bounds[i], bounds[i + 1] - 1, level]) : [];
      const moments = points.map((point) => DATA.trends.points[point]);
      const drawn = ns.map((y, i) => ({ y, role: run.name.startsWith(moments[i][0]) ? "measured" : "recorded" }));
      const [oldest, latest] = [moments[0], moments.at(-1)].map(([moment]) => moment.slice(0, 10));
      const row = labels.get(`${id} ${scope}`);
      const jump = tone(row.state) !== "faint" && row.change ? `; this run: ${row.state} ${row.change}, too new to be a step` : "";
      const said = `${change || `no step, ${oldest} to ${latest}`}${jump}`;
      const name = el("a", { href: linkTo(run, row.case) }, ...named(`${id}`), ` ${scope}`);
      return el("figure", {}, el("figcaption", {}, name), small(drawn, { format: asTime, steps: levels, title: `${id} ${scope}, ${ns.length} sessions: ${said}`, height: 90 }), el("output", {}, said));
    };
    const grid = (part) => el("div", { class: "trends" }, ...part.map(picture));
    const stepped = found.filter((each) => each.change).length;
    host.append(
      el("p", { class: "quiet" }, `${found.length} series of recorded sessions and these runs, oldest first; ${stepped} with a step. Runs that CI kept make them longer: gpukern report RUN.json RUN.json … -o report.html`),
      grid(found.slice(0, FEW)),
      found.length > FEW ? folded(`${Math.min(found.length, FIRST) - FEW} more`, false, (body) => body.append(grid(found.slice(FEW, FIRST)))) : "",
    );
  }

  function plotRoofline(host, run, rows) {
    plotBytesAlone(host, run, rows);
    const found = rows.filter((row) => positive(row.intensity) && positive(row.flop_s)).sort((a, b) => a.intensity - b.intensity);
    if (!found.length) return;
    const memory = run.ceilings.filter((each) => each[1] === "memory");
    const compute = run.ceilings.filter((each) => each[1] === "compute").sort((a, b) => b[2] - a[2]);
    const backends = [...new Set(found.map((row) => row.backend))].sort();
    const marks = found.map((row) => ({
      x: row.intensity,
      y: row.flop_s,
      ...look(backends.indexOf(row.backend)),
      open: () => go(run, row.case),
      text: `${row.label}: ${asRate(row.flop_s)} at ${digits(row.intensity)} FLOP a byte${row.ceiling ? `, ${row.ceiling}` : ""}`,
    }));
    const turns = memory.flatMap((m) => compute.map((c) => c[2] / m[2]));
    const xs = around([...found.map((row) => row.intensity), ...turns], { log: true, part: 0.1 });
    const tops = [...compute.map((each) => each[2]), ...memory.map((each) => each[2] * xs[0])];
    const ys = around([...found.map((row) => row.flop_s), ...tops], { log: true, part: 0.08 });
    const groups = groupsOf(found);
    chart(host, {
      title: "Roofline: rate by operations a byte, under the ceilings measured on this card",
      hint: `${found.length} kernels; a column is a problem at one size, a mark one variant; a click opens a case`,
      summary: [...groups.values()].slice(0, 12).map((group) => `${pointOf(run, group[0])}: best ${best(group).ceiling || asRate(best(group).flop_s)}`).join("; "),
      height: 380,
      legend: backends.map((text, i) => ({ text, ...look(i) })),
      x: { title: "FLOP a byte", format: asSize, log: true, range: xs },
      y: { title: "rate", format: asRate, log: true, range: ys },
      marks,
      dots: found.length > 200 ? 2.5 : 4,
      paint: (pen) => {
        const labels = []; // where ceilings are named
        const fastest = Math.max(...compute.map((each) => each[2]), 0);
        for (const [name, , rate, text] of memory) {
          const end = fastest ? Math.min(fastest / rate, xs[1]) : xs[1];
          pen.line([[xs[0], xs[0] * rate], [end, end * rate]], "soft", { width: 1.5 });
          const middle = Math.sqrt(xs[0] * end);
          const least = pen.box.left + 7.5 * `${name} ${text}`.length * pen.px;
          labels.push(pen.label(`${name} ${text}`, Math.max(pen.x(middle) - 6 * pen.px, least), pen.y(middle * rate), "soft", "right"));
        }
        for (const [i, [name, , rate, text]] of compute.entries()) {
          const start = memory.length ? rate / Math.max(...memory.map((each) => each[2])) : xs[0];
          pen.line([[Math.max(start, xs[0]), rate], [xs[1], rate]], "soft", { width: 1.5 });
          labels.push(pen.label(`${name} ${text}`, pen.box.left + pen.box.width - 4 * pen.px, pen.y(rate) + (i ? 19 * pen.px : 0), "soft", "right"));
        }
        for (const group of groups.values()) {
          if (group.length > 1) pen.line(group.map((row) => [row.intensity, row.flop_s]), "faint", { width: 0.75 });
        }
        const taken = labels.concat(found.map((row) => [pen.x(row.intensity) - 5 * pen.px, pen.y(row.flop_s) - 5 * pen.px, 10 * pen.px, 10 * pen.px]));
        for (const group of groups.values()) nameColumn(pen, pointOf(run, group[0]), group, taken);
      },
    });
  }

  // Writes a column's name beside it, where nothing else stands; else its marks alone tell it, under the pointer.
  function nameColumn(pen, text, group, taken) {
    pen.ctx.font = `${12 * pen.px}px ${getComputedStyle(document.body).fontFamily}`;
    const [width, height] = [pen.ctx.measureText(text).width, 15 * pen.px];
    const { left, top, width: across, height: down } = pen.box;
    const x = pen.x(group[0].intensity);
    const ys = group.map((row) => pen.y(row.flop_s));
    const [high, low] = [Math.min(...ys), Math.max(...ys)];
    const places = [(high + low) / 2 + height / 2, low + height * 1.4, high - 4 * pen.px, low, high + height];
    for (const y of places) {
      for (const start of [x + 8 * pen.px, x - width - 8 * pen.px, x - width / 2]) {
        const box = [start, y - height, width, height];
        const inside = start > left && start + width < left + across && y - height > top && y < top + down;
        const free = taken.every(([a, b, w, h]) => start + width < a || a + w < start || y < b || b + h < y - height);
        if (!inside || !free) continue;
        taken.push(box);
        pen.label(text, start, y, "ink");
        return;
      }
    }
  }

  const best = (rows) => rows.reduce((a, b) => (b.ns < a.ns ? b : a));
  const pointOf = (run, row) => [row.problem, run.cases[row.case].point].filter(Boolean).join(" ");

  // Places kernels without declared flops by the bytes that they declare.
  function plotBytesAlone(host, run, rows) {
    const found = rows.filter((row) => row.scope === "kernel" && !known(row.intensity) && positive(row.share));
    const groups = [...groupsOf(found).values()];
    if (!groups.length) return;
    const marks = groups.flatMap((group, i) =>
      group.map((row) => ({
        x: 100 * row.share, y: groups.length - i,
        colour: tone(row.state) === "bad" ? "bad" : "accent",
        shape: tone(row.state) === "bad" ? "diamond" : "circle",
        text: `${row.label}: ${row.ceiling}${row.state ? `, ${row.state}` : ""}`,
        open: () => go(run, row.case),
      })),
    );
    chart(host, {
      title: "By bytes alone: part of the limit that kernels without declared flops reach",
      hint: `${found.length} kernels; a row is a problem at one size; a diamond is slower; a click opens a case`,
      summary: groups.slice(0, 12).map((group) => `${pointOf(run, group[0])}: best ${best(group).ceiling}`).join("; "),
      height: 110 + 28 * groups.length,
      x: { title: "% of the limit", format: digits, range: [0, Math.max(105, ...marks.map((mark) => 1.05 * mark.x))] },
      y: { title: "", format: () => "", whole: true, range: [0.3, groups.length + 0.9] },
      marks,
      dots: 4,
      paint: (pen) => {
        pen.line([[100, 0], [100, groups.length + 1]], "soft", { width: 1.5 });
        groups.forEach((group, i) => pen.label(pointOf(run, group[0]), pen.box.left + 6 * pen.px, pen.y(groups.length - i) - 4 * pen.px, "ink"));
      },
    });
  }

  const groupsOf = (rows) => Map.groupBy(rows, (row) => row.group);

  const OUTLYING = 6; // times the median, beyond which a bar would make those of the others one

  // Shows the variants of one problem at one size, or all its sizes.
  function showVariants(host, run, rows) {
    const { view } = run;
    const timed = rows.filter(counts);
    const problems = [...new Set(timed.map((row) => row.problem))];
    if (!problems.length) return host.append(el("p", { class: "quiet" }, "No time is left here."));
    const again = (changes) => {
      Object.assign(view, changes);
      forgetCharts(host);
      host.replaceChildren();
      showVariants(host, run, rows);
      host.querySelector(`[data-pick="${Object.keys(changes)[0]}"] :is(select, [aria-pressed=true])`)?.focus();
    };
    const worst = timed.reduce((a, b) => (b.rank < a.rank ? b : a));
    const problem = [view.shownProblem, worst.problem].find((each) => problems.includes(each)) || problems[0];
    const groups = groupsOf(timed.filter((row) => row.problem === problem));
    const wrong = [...groups.values()].find((group) => group.some((row) => tone(row.state) === "bad"));
    const axis = longestAxis(run, [...groups.values()].flat());
    const ordered = bySize(run, groups);
    const group = groups.get(view.shownGroup) || wrong || groups.get(ordered.at(-1)[0]);
    const by = axis && view.by;
    host.append(
      bestOf(run, timed),
      picks("shownProblem", "problem", problems.map((each) => [each, each]), problem, (value) => again({ shownProblem: value, shownGroup: null })),
      picks("shownGroup", "size", [...ordered, ...(axis ? [["time", `time by ${axis}`]] : [])], by || group[0].group, (value) =>
        again(typeof value === "number" ? { shownGroup: value, by: null } : { by: value }),
      ),
    );
    const only = Object.entries(run.cases[group[0].case].sizes).map((size) => size.join("="));
    if (groups.size === 1 && only.length) host.append(el("p", { class: "quiet" }, `All at ${only.join(" ")}.`));
    if (by) plotBySize(host, run, [...groups.values()].flat(), axis);
    else barsOf(host, run, group, again);
  }

  const bySize = (run, groups) =>
    [...groups.values()].map(([row]) => [row.group, run.cases[row.case].point || "its only size"]).sort((a, b) => collator.compare(a[1], b[1]));

  // Says for each problem, at its largest size, which variants are best, and what a call of the best kernel costs.
  function bestOf(run, timed) {
    const fastest = (rows, scope) => rows.filter((row) => row.scope === scope).sort((a, b) => a.ns - b.ns)[0];
    const link = (row) => row && el("a", { href: linkTo(run, row.case) }, ...breakable(`${row.variant} ${run.cases[row.case].with}`));
    const cells = (rows) => {
      const groups = groupsOf(rows);
      const group = groups.get(bySize(run, groups).at(-1)[0]);
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
    const buttons = () => choices.map(([value, text]) => el("button", { type: "button", "aria-pressed": String(value === current), on: { click: () => pick(value) } }, text));
    const list = () => {
      const options = choices.map(([value, text], i) => el("option", { value: i, selected: value === current }, text));
      const select = el("select", { "aria-label": label }, ...options);
      select.addEventListener("change", () => pick(choices[select.value][0]));
      return [select];
    };
    return el("div", { class: "picks no-print", role: "group", "aria-label": label, "data-pick": name }, ...(choices.length > 14 ? list() : buttons()));
  }

  function barsOf(host, run, rows, again) {
    const scopes = [...new Set(rows.map((row) => row.scope))];
    const main = scopes.includes("kernel") ? "kernel" : scopes[0];
    const beside = scopes.find((scope) => scope === "end_to_end" && scope !== main) || scopes.find((scope) => scope !== main);
    const cases = [...new Set(rows.map((row) => row.case))].map((index) => {
      const of = (scope) => rows.find((row) => row.case === index && row.scope === scope);
      return { index, first: of(main), second: of(beside) };
    });
    const rank = (each) => [each.first ? 0 : 1, (each.first || each.second || {}).ns];
    const ranked = cases.filter((each) => each.first || each.second).sort((a, b) => rank(a)[0] - rank(b)[0] || rank(a)[1] - rank(b)[1]);
    const middle = (name) => {
      const times = ranked.flatMap((each) => (each[name] ? [each[name].ns] : [])).sort((a, b) => a - b);
      const limit = OUTLYING * times[Math.floor((times.length - 1) / 2)];
      return { limit, most: Math.max(...times.filter((ns) => ns <= limit)) };
    };
    const [scale, scale2] = [middle("first"), middle("second")];
    const best = Math.min(...run.rows.filter((row) => row.group === rows[0].group && row.scope === main && counts(row)).map((row) => row.ns));
    const barred = run.rows.filter((row) => row.group === rows[0].group && DATA.barred.includes(row.state));
    const wrong = [...new Map(barred.map((row) => [row.case, row])).values()];
    if (wrong.length) host.append(el("p", { class: "quiet" }, "Without a time that counts: ", ...wrong.slice(0, FEW).flatMap((row) => [el("a", { href: linkTo(run, row.case) }, ...breakable(row.variant)), " ", badge(row.state), " "]), wrong.length > FEW && `and ${wrong.length - FEW} more`));
    const far = ranked.filter((each) => each.first && each.first.ns > scale.limit);
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
    const spoken = (scope) => scope.replaceAll("_", " ");
    const columns = ["variant", spoken(main), "time", "× best", `% of ${limits.length === 1 ? limits[0] : "limit"}`, against && `× ${against}`];
    const more = beside ? [spoken(beside), "time", against && `× ${against}`] : [];
    const titles = [...columns, ...more].filter((title) => title);
    const body = shown.map(({ index, first, second }) => {
      const one = run.cases[index];
      const worst = [first, second].find((row) => row && TONES.get(row.state) === "bad");
      const name = el("th", { scope: "row" }, el("a", { href: linkTo(run, index) }, ...breakable(one.variant)), " ", el("small", {}, one.with), " ", worst ? badge(worst.state) : "");
      const limit = first && (limits.length === 1 ? first.reached : first.ceiling);
      const cells = [bar(first, scale), number(first && first.time), number(first && asTimes(first.ns / best)), number(limit), ...(against ? [number(first && first.speedup)] : [])];
      const others = beside ? [bar(second, scale2), number(second && second.time, "second"), ...(against ? [number(second && second.speedup)] : [])] : [];
      return el("tr", {}, name, ...cells, ...others);
    });
    const head = titles.map((title) => el("th", { scope: "col", class: ["variant", spoken(main), more[0]].includes(title) ? null : "number" }, title));
    host.append(el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "variants" }, el("table", { class: "bars" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body))));
    if (!far.length) return;
    const times = far.map((each) => asTimes(each.first.ns / best));
    const text = run.view.outliers ? "hide what is far slower" : `show ${far.length} far slower: ${[...new Set([times[0], times.at(-1)])].join(" to ")} the best`;
    host.append(el("p", { "data-pick": "outliers" }, el("button", { type: "button", "aria-pressed": String(Boolean(run.view.outliers)), on: { click: () => again({ outliers: !run.view.outliers }) } }, text)));
  }

  const asTimes = (value) => (value >= 9.95 ? `${value.toFixed(0)}×` : `${value.toFixed(2)}×`);

  function longestAxis(run, rows) {
    const sizes = new Map();
    for (const row of rows) {
      for (const [name, size] of Object.entries(run.cases[row.case].sizes)) sizes.set(name, (sizes.get(name) || new Set()).add(size));
    }
    const longest = [...sizes].sort((a, b) => b[1].size - a[1].size)[0];
    return longest && longest[1].size > 1 ? longest[0] : null;
  }

  function plotBySize(host, run, rows, axis) {
    const used = rows.filter((row) => run.cases[row.case].sizes[axis]);
    const main = used.some((row) => row.scope === "kernel") ? "kernel" : used[0].scope;
    const timed = new Set(used.flatMap((row) => (row.scope === main ? [row.case] : [])));
    const points = used.flatMap((row) => {
      if (row.scope !== main && timed.has(row.case)) return [];
      const one = run.cases[row.case];
      const others = Object.entries(one.sizes).flatMap(([name, size]) => (name !== axis && one.point.includes(`${name}=`) ? [`${name}=${size}`] : []));
      const label = [one.variant, one.with, ...others, row.scope === main ? "" : row.scope].filter(Boolean).join(" ");
      return [{ label, x: one.sizes[axis], y: row.ns, row }];
    });
    const lines = [...Map.groupBy(points, (point) => point.label)].map(([label, line]) => [label, line.sort((a, b) => a.x - b.x)]);
    const series = lines.sort((a, b) => b[1].at(-1).x - a[1].at(-1).x || a[1].at(-1).y - b[1].at(-1).y).slice(0, FEW);
    const marks = series.flatMap(([label, line], i) =>
      line.map(({ x, y, row }) => ({ x, y, ...look(i), open: () => go(run, row.case), text: `${label}, ${axis}=${x}: ${asTime(y)}` })),
    );
    const [xs, ys] = [marks.map((mark) => mark.x), marks.map((mark) => mark.y)];
    const ends = ([label, line]) => `${label}: ${asTime(line[0].y)} at ${line[0].x} to ${asTime(line.at(-1).y)} at ${line.at(-1).x}`;
    chart(host, {
      title: `Time by ${axis}, ${main}`,
      hint: `less is faster; a click opens a case${lines.length > FEW ? `; the ${FEW} fastest of ${lines.length} at the largest size: search for others` : ""}`,
      summary: series.map(ends).join("; "),
      height: 360,
      legend: series.map(([text], i) => ({ text, ...look(i) })),
      x: { title: axis, format: asSize, log: isWide(xs), range: around(xs, { log: isWide(xs) }) },
      y: { title: "time", format: asTime, log: isWide(ys), range: around(ys, { log: isWide(ys) }) },
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
    run.rows.forEach((row, i) => {
      const found = run.cases[row.case];
      Object.assign(row, { place: i, problem: found.problem, backend: found.backend, variant: found.variant });
      row.ceiling = [row.reached, row.of_limit].filter(Boolean).join(" ");
      row.size = [found.point, found.with, row.scope && row.scope !== "kernel" && `· ${row.scope}`].filter(Boolean).join(" ");
      row.label = `${found.id}${row.scope ? ` ${row.scope}` : ""}`;
      row.sought = `${row.label} ${found.nodeid} ${row.state}`.toLowerCase();
    });
    run.view = { ...PLAIN, shown: FIRST, scroll: 0 };
    return run;
  }

  const moved = (row) => (positive(row.ratio) ? Math.abs(Math.log(row.ratio)) : 0);
  const CHOICES = ["state", "backend", "problem", "scope"];

  function filtered(run) {
    const { text, sort, down, ...view } = run.view;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = CHOICES.filter((name) => view[name]);
    const rows = run.rows.filter(
      (row) => chosen.every((name) => row[name] === view[name]) && words.every((word) => row.sought.includes(word)),
    );
    const { text: field, number } = COLUMNS[sort];
    const sign = down ? -1 : 1;
    const lacks = (row) => (number ? !known(row[number]) : !row[field]);
    return rows.sort((a, b) => {
      if (lacks(a) !== lacks(b)) return lacks(a) ? 1 : -1; // what has no value comes last either way
      const order = lacks(a) ? 0 : number ? a[number] - b[number] : collator.compare(a[field], b[field]);
      return sign * order || (number === "rank" ? moved(b) - moved(a) : 0) || a.place - b.place;
    });
  }

  const classes = (column, number) =>
    [number && "number", column.minor && "minor", column.least && "least"].filter(Boolean).join(" ");

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
    const head = el("tr");
    const body = el("tbody");
    const foot = el("p", { class: "quiet no-print" });
    COLUMNS.forEach((column, i) => {
      const sort = () => {
        const { view } = run;
        view.down = view.sort === i ? !view.down : false;
        view.sort = i;
        view.shown = FIRST;
        show();
        remember(run);
        head.children[i].firstChild.focus();
      };
      const title = column.title === "time" && run.rows.some((row) => row.way) ? "recorded → now" : column.title;
      const button = el("button", { type: "button", on: { click: sort } }, title);
      head.append(el("th", { scope: "col", class: classes(column, column.number && !column.plain) }, button));
    });
    const show = () => {
      const rows = filtered(run);
      const { view } = run;
      [...head.children].forEach((cell, i) => {
        cell.setAttribute("aria-sort", i !== view.sort ? "none" : view.down ? "descending" : "ascending");
      });
      body.replaceChildren(...rows.slice(0, view.shown).map((row) => rowOf(run, row)));
      const left = rows.length - view.shown;
      foot.replaceChildren();
      if (left > 0) {
        const more = () => {
          const from = view.shown;
          view.shown += FIRST;
          show();
          body.children[from].querySelector("a").focus();
        };
        foot.append(el("button", { type: "button", class: "more", on: { click: more } }, `show ${Math.min(left, FIRST)} more of ${left}`));
      }
      heading.textContent = rows.length === run.rows.length ? `${rows.length} rows` : `${rows.length} of ${run.rows.length} rows`;
      return rows;
    };
    const columns = el("table", { class: "cases" }, el("thead", {}, head), body);
    place.append(el("div", { class: "wide" }, columns), foot);
    return show;
  }

  function choice(run, name, changed) {
    const counts = new Map();
    for (const row of run.rows) if (row[name]) counts.set(row[name], (counts.get(row[name]) || 0) + 1);
    if (counts.size < 2) return "";
    const ranks = new Map(run.rows.map((row) => [row.state, row.rank]));
    const order = name === "state" ? (a, b) => ranks.get(a) - ranks.get(b) : collator.compare;
    const title = name === "state" ? "verdict" : name;
    const options = [...counts.keys()].sort(order).map((value) =>
      el("option", { value, selected: run.view[name] === value }, `${value} (${counts.get(value)})`),
    );
    const select = el("select", { name }, el("option", { value: "" }, "all"), ...options);
    select.addEventListener("change", () => {
      run.view[name] = select.value;
      changed();
    });
    return el("label", {}, title, select);
  }

  // --- what failed ---------------------------------------------------------------------------------

  function failureCard(run, card, i) {
    const line = (title, ...parts) => {
      return parts.some((part) => part) && el("div", { class: "line" }, el("dt", {}, title), el("dd", {}, ...parts));
    };
    const links = card.sizes.length ? card.sizes : [""];
    const sizes = links.flatMap((size, at) => [at ? ", " : " ", known(card.cases[at]) && size ? el("a", { href: linkTo(run, card.cases[at]) }, size) : size]);
    const name = card.cases.length && !card.sizes.length ? el("a", { href: linkTo(run, card.cases[0]) }, ...named(card.name)) : el("span", {}, ...named(card.name));
    const scope = run.cases[card.cases[0]]?.scopes.find((each) => each.shown && each.timing[0] === card.scope);
    return el(
      "article",
      { class: "card", id: `failure-${i + 1}`, tabindex: "-1" },
      el("h2", {}, badge(card.kind, "filled"), " ", name, el("small", {}, ...sizes, card.scope && ` · ${card.scope.replaceAll("_", " ")}`)),
      el(
        "div",
        { class: "answers" },
        el("dl", {}, line(card.times ? "from → to" : "what", card.times && change(card), card.what.length && told(card.what, card.times ? "span" : "b")), line("why", card.why.length && el("ul", {}, ...card.why.map((text) => el("li", {}, text))))),
        el("dl", {}, line("since when", ...card.since.map((text) => el("p", {}, text)), scope && card.times && pastOf(run, card, scope))),
        el("dl", { class: "both" }, line("what to do", command("repeat", card.repeat), card.accept && command("accept", card.accept), card.advice && el("p", { class: "quiet" }, card.advice))),
      ),
    );
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
    const limits = known(card.share_before) ? [...bar("before", card.share_before, ` of ${card.limit}`), ...bar("now", card.share_now, "")] : [];
    return el(
      "div",
      {},
      el("p", { class: "big" }, card.times, " ", el("b", { class: tone(card.kind) }, card.percent), " ", el("small", { title: "90 % interval" }, card.interval)),
      limits.length ? el("div", { class: "limits" }, ...limits) : "",
    );
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
    const times = past.map((point) => point.y).sort((a, b) => a - b);
    const band = known(card.limit_at) && [card.before_ns / (1 + card.limit_at), card.before_ns * (1 + card.limit_at)];
    const on = new Set(past.map((point) => point.card)).size;
    const span = past[0].day === past.at(-1).day ? past[0].day : `${past[0].day} to ${past.at(-1).day}`;
    return el(
      "div",
      {},
      small(points, { format: asTime, band, tone: tone(card.kind), title: `Recorded sessions took ${asTime(times[0])} to ${asTime(times.at(-1))}; this run ${card.times}` }),
      el("p", { class: "quiet key" }, `● ${past.length} recorded on ${on} ${on === 1 ? "card" : "cards"}, ${span} · ◆ this run`, points.some((point) => point.role === "confirming") && " · □ sessions that confirm", points.some((point) => point.role === "further") && " · △ further sessions", band && ` · band: ±\u00a0${card.threshold}`),
    );
  }

  // Draws a few points in their order as a small picture, in which this run's stand apart.
  function small(points, { format, band, steps = [], tone: colour = "", title, height = 120 }) {
    const [width, left, right, top] = [420, 58, 10, 10];
    const [low, high] = around([...points.map((point) => point.y), ...(band || [])], { part: 0.08 });
    const x = (i) => left + ((i + 0.5) * (width - left - right)) / points.length;
    const y = (value) => top + ((high - value) * (height - 2 * top)) / (high - low);
    const drawing = svg("svg", { class: `small ${colour}`, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    const add = (name, options, text) => {
      const made = svg(name, options);
      if (text) made.textContent = text;
      drawing.append(made);
    };
    if (band) add("rect", { class: "band", x: left, width: width - left - right, y: y(band[1]), height: Math.max(y(band[0]) - y(band[1]), 1) });
    const values = points.map((point) => point.y);
    const ends = [Math.min(...values), Math.max(...values)];
    const same = format(ends[0]) === format(ends[1]);
    for (const value of new Set(ends)) {
      add("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` });
      add("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, same && value > ends[0] ? asChange(value / ends[0]) : format(value));
    }
    for (const [from, to, level] of steps) add("path", { class: "level", d: `M${x(from) - 6} ${y(level)}H${x(to) + 6}` });
    points.forEach((point, i) => {
      const [across, down] = [x(i), y(point.y)];
      const shape = { measured: "M0-6L6 0L0 6L-6 0Z", confirming: "M-4-4H4V4H-4Z", further: "M0-5L5 4H-5Z" }[point.role];
      if (shape) add("path", { class: point.role, d: shape, transform: `translate(${across} ${down})` });
      else add("circle", { class: "recorded", cx: across, cy: down, r: 4 });
    });
    return drawing;
  }

  function otherChanges(run) {
    const entry = ([kind, cases, by, cause]) =>
      el("li", {}, el("a", { href: linkToTimes(run, { state: kind }), class: "plain" }, badge(kind)), " ", ...named(cases), " ", el("b", {}, by), cause && el("span", { class: "quiet" }, ` ${cause}`));
    return run.others.length ? el("ul", { class: "others" }, ...run.others.map(entry)) : "";
  }

  // --- several runs --------------------------------------------------------------------------------

  // Compares the times of all runs in this page, the newest with the one before it, large changes first.
  function compareRuns() {
    const runs = [...DATA.runs].reverse().map(prepared); // oldest first
    const times = new Map();
    runs.forEach((run, i) => {
      for (const row of run.rows) if (row.scope) times.set(row.label, Object.assign(times.get(row.label) || [], { [i]: row }));
    });
    let apart = 0;
    const rows = [...times].flatMap(([label, of]) => {
      const had = Object.keys(of).map(Number);
      if (had.length < 2) return [];
      const [before, now] = had.slice(-2).map((i) => of[i]);
      if (!counts(before) || !counts(now) || before.like !== now.like) {
        apart += 1;
        return [];
      }
      return [{ label, of, now, run: runs[had.at(-1)], ratio: now.ns / before.ns }];
    });
    rows.sort((a, b) => moved(b) - moved(a));
    const cells = (each) => [
      el("a", { href: linkTo(each.run, each.now.case) }, ...named(each.label)),
      asChange(each.ratio),
      ...runs.map((_, i) => each.of[i]?.time),
    ];
    const titles = ["case", ["change", true], ...runs.map((run) => [run.name, true])];
    return section(
      "Runs compared",
      el("p", { class: "quiet" }, `${rows.length} times are in more than one run; the change is of the last two, the largest first. A difference between two runs is no verdict: sessions differ.${apart ? ` ${apart} are left out: they have no valid time in both, or differ in timer, cache, problem version or device model.` : ""}`),
      rows.length ? tableOf(titles, rows.slice(0, FEW).map(cells)) : "",
      rows.length > FEW ? folded(`${Math.min(rows.length, FIRST) - FEW} more`, false, (body) => body.append(tableOf(titles, rows.slice(FEW, FIRST).map(cells)))) : "",
    );
  }

  // --- the two pages -------------------------------------------------------------------------------

  function overview(run) {
    const { view } = run;
    const plots = [];
    const heading = el("span", { class: "quiet", role: "status" });
    const cases = el("div", { id: "cases", tabindex: "-1" });
    let waiting = 0;
    const changed = () => {
      view.shown = FIRST;
      const rows = showRows();
      remember(run);
      clearTimeout(waiting);
      waiting = setTimeout(() => plots.forEach((again) => again(rows)), 150);
    };
    const plotted = (title, draw) =>
      folded(title, true, (body) => {
        const again = (rows) => {
          forgetCharts(body);
          body.replaceChildren();
          draw(body, run, rows);
        };
        again(filtered(run));
        plots.push(again);
      });
    const search = el("input", {
      type: "search", id: "search", value: view.text, placeholder: "part of a name", autocomplete: "off",
      on: { input: (event) => { view.text = event.target.value; changed(); } },
    });
    const filter = el(
      "form",
      { class: "filter no-print", role: "search", "aria-label": "cases", on: { submit: (event) => event.preventDefault() } },
      el("label", {}, "search", search),
      ...CHOICES.map((name) => choice(run, name, changed)),
      heading,
    );
    const compared = run.rows.some((row) => known(row.ratio));
    const timed = run.rows.some((row) => positive(row.ns));
    const on_roof = run.rows.some((row) => row.scope === "kernel" && known(row.share));
    const [word, rest] = run.headline;
    const brief = run.failures.map((card, i) => el("li", {}, el("a", { href: `#failure-${i + 1}`, on: { click: (event) => { event.preventDefault(); show(`failure-${i + 1}`); } } }, badge(card.kind), " ", ...named(card.name)), " ", card.times ? `${card.times}, ${card.percent}` : ""));
    const part = (title, count, children) => (count ? folded(title, false, (body) => body.append(...children())) : "");
    main.replaceChildren(
      ...[
        el("h1", {}, el("span", { class: tone(word) }, rest ? `${word}:` : word), rest ? ` ${rest}` : ""),
        el("p", { class: "quiet" }, run.context.join(" · ")),
        el("p", { class: "quiet tally" }, run.verdict),
        brief.length > 1 && el("ul", { class: "brief no-print" }, ...brief),
        run.problems.length && section("Went wrong", listOf(run.problems)),
        ...run.failures.slice(0, FEW).map((card, i) => failureCard(run, card, i)),
        part(`${run.failures.length - FEW} more failures`, run.failures.length > FEW, () => run.failures.slice(FEW).map((card, i) => failureCard(run, card, i + FEW))),
        otherChanges(run),
        part(`${run.notes.length} ${run.notes.length === 1 ? "note" : "notes"}`, run.notes.length, () => [notes(run)]),
        part("To record and to accept", run.closing.length, () => run.closing.map(([text, line]) => (line ? command(text, line) : el("p", {}, text)))),
        part("Machine and libraries", run.facts.length, () => [facts(run.facts)]),
        part(`Did not run: ${run.skips.length} ${run.skips.length === 1 ? "reason" : "reasons"}`, run.skips.length, () => [listOf(run.skips)]),
        DATA.runs.length > 1 && compareRuns(),
        el("h2", {}, "Cases"),
        filter,
        timed && plotted("How fast are the variants?", showVariants),
        on_roof && plotted("How near to the limits of the card?", plotRoofline),
        (compared || run.canaries.length > 0) && plotted("Is the machine as recorded?", plotShifts),
        DATA.trends.series.length > 0 && plotted("Since when? Times over sessions", plotTrends),
        cases,
        el("p", { class: "quiet no-print keys" }, "Keys: / searches, j and k go through the rows, Enter opens a case, Escape comes back. In a plot, dragging zooms and a double click shows all again."),
      ].filter((child) => child),
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

  function facts(pairs) {
    return el("dl", {}, ...pairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  }

  function canaries(run) {
    return run.canaries.length ? tableOf(["canary", ["time", true], ["change", true], "verdict, usual"], run.canaries) : "";
  }

  function notes(run) {
    const entry = ([text, who]) => {
      const links = who.slice(0, 3).flatMap(([index, label], i) => [
        i ? ", " : "",
        known(index) ? el("a", { href: linkTo(run, index) }, label) : label,
      ]);
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
    const scopes = one.scopes.map((scope) => ({ ...scope, ...(scope.shown && own.find((row) => row.scope === scope.timing[0])) }));
    const plotted = scopes.filter((scope) => scope.shown);
    const states = [...new Set(own.map((row) => row.state))].filter((state, i, all) => state && (TONES.has(state) || all.length === 1));
    main.replaceChildren(
      el("nav", { class: "no-print", "aria-label": "cases" }, el("a", { href: linkToTimes(run), rel: "up" }, "← all cases"), step(-1, "previous"), step(1, "next")),
      el("h1", { tabindex: "-1" }, ...states.flatMap((state) => [badge(state), " "]), ...named(one.id)),
      facts(one.facts),
      ...(one.told.length ? [section("In words", el("ul", { class: "told" }, ...one.told.map(([kind, text, key]) => el("li", {}, badge(kind), " ", key, " ", el("span", { class: "reason" }, text)))))] : []),
      ...(scopes.length ? [section("Times", timesTable(scopes))] : []),
      ...(one.errors.length ? [section("Errors", tableOf(run.error_titles, one.errors))] : []),
      ...(one.kernels.length ? [section("Kernels", tableOf(run.kernel_titles, one.kernels))] : []),
      ...(one.observed.length ? [section("Observed", tableOf(["of", "observer", "what it saw"], one.observed.map(([of, ...rest]) => [of || "the test", ...rest])))] : []),
      section("Repeat it", command("repeat", one.command)),
      ...plotted.map((scope) => scopeSection(run, one, scope)),
      ...(one.epochs.length ? [section("Epochs of the record", tableOf(["epoch", "opened", "reason"], one.epochs.map((each, i) => [String(i + 1), ...each])))] : []),
    );
    drawScopes(run, plotted);
    document.title = `${one.id} · gpukern`;
  }

  function timesTable(scopes) {
    const figures = ["time", "95 % interval", "±", "samples", "rate", "of ceiling", "speed-up", "change", "90 % interval", "threshold"];
    const names = ["scope", "timer", "cache", ...figures.map((name) => [name, true]), "verdict"];
    return tableOf(
      names,
      scopes.map((each) => [
        ...each.timing, each.time, each.range, each.uncertainty, String(each.n), each.rate, each.ceiling,
        each.speedup, each.change, each.interval, each.threshold, each.state && badge(each.state),
      ]),
    );
  }

  function scopeSection(run, one, scope) {
    const [name, timer, cache] = scope.timing;
    const title = `${name} by ${timer}, ${cache}`;
    return el(
      "section",
      { class: "scope" },
      el("h2", {}, title),
      el("p", { class: "quiet" }, scope.told),
      scope.reason && !one.told.some(([, text]) => text === scope.reason) ? el("p", {}, badge(scope.state), " ", scope.reason) : "",
      el("div", { class: "plots" }),
      ...(scope.work ? [el("h3", {}, scope.work[0]), tableOf(run.work_titles, scope.work[1]), listOf(scope.work[2])] : []),
    );
  }

  function drawScopes(run, scopes) {
    const places = main.querySelectorAll(".plots");
    scopes.forEach((scope, i) => {
      if (scope.distribution) plotDistribution(places[i], scope);
      if (scope.series) plotOverTime(places[i], scope);
      if (scope.sessions.length > 1) plotSessions(places[i], run, scope);
      if (scope.pairs && scope.pairs.length) plotPairs(places[i], scope);
    });
  }

  // --- where the reader is -------------------------------------------------------------------------

  function linkTo(run, index) {
    const place = new URLSearchParams(run.number ? { run: run.number } : {});
    place.set("case", run.cases[index].id);
    return `#${place}`;
  }

  // Returns a link to the table with search, filters and order as they are, or as given.
  function linkToTimes(run, view = run.view) {
    const given = Object.keys(PLAIN).filter((name) => known(view[name]) && view[name] !== PLAIN[name]);
    const place = given.map((name) => [name, name === "sort" ? COLUMNS[view.sort].title : String(view[name])]);
    return `#${new URLSearchParams([...(run.number ? [["run", run.number]] : []), ...place])}`;
  }

  const remember = (run) => history.replaceState(null, "", linkToTimes(run));

  function go(run, index) {
    location.hash = linkTo(run, index);
  }

  let last = null;

  function route() {
    const place = new URLSearchParams(location.hash.slice(1));
    const run = prepared(DATA.runs[Number(place.get("run"))] || DATA.runs[0]);
    const index = run.places.get(place.get("case"));
    if (last && !last.onCase) last.run.view.scroll = last.scroll;
    forgetCharts(document.body);
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

  DATA.runs.forEach((run, i) => {
    run.number = i;
  });
  const chosen = el(
    "select",
    { id: "run", "aria-label": "run", on: { change: () => { location.hash = chosen.value === "0" ? "" : `run=${chosen.value}`; } } },
    ...DATA.runs.map((run, i) => el("option", { value: i }, run.name)),
  );
  document.querySelector("header").append(DATA.runs.length > 1 ? chosen : el("span", {}, DATA.runs[0].name));

  function walk(by) {
    const links = [...document.querySelectorAll(".cases tbody a")];
    const next = links[links.indexOf(document.activeElement) + by];
    if (next) {
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  }

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
    const search = document.getElementById("search");
    if (event.key === "Escape") {
      if (typing) {
        event.preventDefault(); // a browser would empty the search, and keep what it chose
        document.activeElement.blur();
      } else document.querySelector("a[rel=up]")?.click();
    } else if (!typing && event.key === "/" && search) {
      event.preventDefault();
      search.focus();
    } else if (!typing && (event.key === "j" || event.key === "k")) walk(event.key === "j" ? 1 : -1);
    else if (!typing && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      document.querySelector(event.key === "ArrowLeft" ? "a[rel=prev]" : "a[rel=next]")?.click();
    }
  });
  addEventListener("scroll", () => { if (last) last.scroll = window.scrollY; }, { passive: true });
  addEventListener("hashchange", route);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  // Paper is light, whatever the screen is.
  for (const [event, printed] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      if (printed) for (const box of document.querySelectorAll("details")) box.openNow?.();
      document.documentElement.classList.toggle("printed", printed);
      redrawCharts();
    });
  }
  route();
})();
