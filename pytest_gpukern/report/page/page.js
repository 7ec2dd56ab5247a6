// Shows the runs of a report: an overview with the table of cases, or one case.
//
// The data comes from a file that anybody may have written. So text enters the page as text nodes only, and
// every link leads to a place in this page. Python writes words and figures; this script sorts, filters and
// draws, and formats only what stands on an axis or under the pointer.
"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const FIRST = 300; // rows that are drawn before more are asked for
  const REACH = 24; // pixels from which the pointer finds a mark
  const TONES = new Map([...Object.entries(DATA.tones), ["PASSED", "good"]]);
  const main = document.querySelector("main");

  // --- elements and numbers ------------------------------------------------------------------------

  function el(name, options, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(options || {})) {
      if (key === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
    return made;
  }

  function svg(name, options) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(options)) made.setAttribute(key, value);
    return made;
  }

  // A table crosses in columns: all values, or those that differ and the place of each row's among them.
  function records({ count, columns }) {
    const found = Array.from({ length: count }, () => ({}));
    for (const [name, { values, distinct, places }] of Object.entries(columns)) {
      found.forEach((record, i) => {
        record[name] = values ? values[i] : distinct[places[i]];
      });
    }
    return found;
  }

  function digits(value) {
    return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  }

  function scaled(value, units) {
    const [scale, unit] = units.findLast((each) => Math.abs(value) >= each[0] * 0.9995) || units[0];
    return `${digits(value / scale)} ${unit}`;
  }

  const asTime = (ns) => scaled(ns, DATA.units.time);
  const asRate = (flops) => scaled(flops, DATA.units.rate);
  const asFactor = (value) => `${digits(value)}×`;
  const asSize = (value) => scaled(value, [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"]]).replace(" ", "");

  function asChange(ratio) {
    const percent = Number((100 * (ratio - 1)).toFixed(2));
    return `${percent > 0 ? "+" : percent < 0 ? "−" : ""}${digits(Math.abs(percent))} %`;
  }

  const known = (value) => value !== null && value !== undefined;
  const positive = (value) => known(value) && value > 0;
  const tone = (state) => TONES.get(state) || "faint";
  const badge = (state) => (state ? el("span", { class: `badge ${tone(state)}` }, state) : "");

  // Lets a long name break behind its dots and underscores.
  const breakable = (name) => name.split(/(?<=[._])/).flatMap((part) => [part, el("wbr")]);

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
    return box;
  }

  // Returns a table without its empty columns. A column is a name, or a name and whether it is numeric.
  function tableOf(columns, rows) {
    const names = columns.map((column) => [column].flat());
    const kept = names.map((_, i) => i).filter((i) => rows.some((row) => known(row[i]) && row[i] !== ""));
    const cells = (tag, row) =>
      kept.map((i) => el(tag, { class: names[i][1] && "number" }, row[i] ?? ""));
    const titles = names.map(([name]) => name);
    return el(
      "div",
      { class: "wide", tabindex: "0" },
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
    const box = el("div", { class: "plot", role: "img", "aria-label": spec.title });
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
    const swatch = ({ colour, shape }) => {
      const drawing = svg("svg", { viewBox: "-14 -14 28 28", "aria-hidden": "true" });
      const corners = CORNERS[shape];
      const form = corners
        ? svg("polygon", { points: corners.map(([x, y]) => `${9 * x},${9 * y}`).join(" ") })
        : svg("circle", { r: 9 });
      form.style.fill = `var(--${colour})`;
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
        ctx.fillStyle = paint[mark.colour];
        ctx.fill();
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
    const { low, high, counts, beyond } = scope.distribution;
    const width = (high - low) / counts.length || Math.abs(low) * 0.001 || 1;
    const marks = counts.map((count, i) => ({
      x: low + (i + 0.5) * width,
      y: count,
      colour: "accent",
      text: `${asTime(low + i * width)} to ${asTime(low + (i + 1) * width)}: ${count} samples`,
    }));
    chart(host, {
      title: "Distribution of the samples",
      hint: `median ${scope.time} in its 95 % interval${beyond ? `; ${beyond}` : ""}`,
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
    const { low, high, stride, packed, count } = scope.series;
    const marks = unpacked(packed, low, high).map((y, i) => ({
      x: 1 + i * stride,
      y,
      colour: "accent",
      text: `${stride === 1 ? "sample" : "about sample"} ${digits(1 + Math.floor(i * stride))}: ${asTime(y)}`,
    }));
    chart(host, {
      title: "Samples in the order taken",
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

  function plotSessions(host, run, scope) {
    const found = scope.sessions.map(([moment, card, epoch, ns, low, high]) => ({ moment, card, epoch, ns, low, high }));
    const cards = [...new Set(found.map((each) => each.card))];
    const named = (card) => (known(card) ? `card ${run.cards[card]}` : "no card named");
    const marks = found.map((each, i) => ({
      x: i + 1,
      y: each.ns,
      low: each.low,
      high: each.high,
      ...look(cards.indexOf(each.card)),
      ...(each.epoch === null ? { colour: "ink" } : {}),
      text:
        `${each.epoch === null ? "this run" : `epoch ${each.epoch + 1}`}, ${run.moments[each.moment]}: ` +
        `${asTime(each.ns)}, ${known(each.low) && known(each.high) ? `${asTime(each.low)} … ${asTime(each.high)}, ` : ""}${named(each.card)}`,
    }));
    const begins = found.flatMap((each, i) => (!i || each.epoch !== found[i - 1].epoch ? [i] : []));
    const dated = (x) => {
      const each = found[Math.round(x) - 1];
      return each ? run.moments[each.moment].slice(0, 10) : "";
    };
    chart(host, {
      title: "Recorded sessions and this run",
      hint: `${found.length} sessions, oldest first`,
      legend: [
        ...cards.map((card, i) => ({ text: named(card), ...look(i) })),
        { text: "this run", colour: "ink" },
      ],
      x: { title: "session", format: dated, whole: true, space: 90, range: [0.4, found.length + 0.6] },
      y: { title: "time", format: asTime, range: around(found.flatMap((each) => [each.low, each.high, each.ns])) },
      marks,
      dots: 4.5,
      paint: (pen) => {
        for (const first of begins) {
          const x = first ? pen.x(first + 0.5) : pen.box.left;
          const { epoch } = found[first];
          pen.ctx.fillStyle = pen.paint.soft;
          if (first) pen.ctx.fillRect(x, pen.box.top, pen.px, pen.box.height);
          const right = x > pen.box.left + 0.8 * pen.box.width;
          const end = right ? pen.box.left + pen.box.width : x;
          const text = epoch === null ? "this run" : `epoch ${epoch + 1}`;
          pen.label(text, end + (right ? -4 : 4) * pen.px, pen.box.top + 18 * pen.px, "soft", right ? "right" : "left");
        }
      },
    });
  }

  function thresholdLine(pen, threshold, [left, right]) {
    pen.line([[left, 1], [right, 1]], "soft");
    if (!known(threshold)) return;
    pen.line([[left, 1 + threshold], [right, 1 + threshold]], "bad", { dash: [5, 4] });
    const text = `threshold ${asChange(1 + threshold)}`;
    pen.label(text, pen.box.left + pen.box.width - 4 * pen.px, pen.y(1 + threshold), "bad", "right");
  }

  function plotPairs(host, scope) {
    const marks = scope.pairs.map(([base, head], i) => ({
      x: i + 1,
      y: head / base,
      colour: "accent",
      text: `pair ${i + 1}: ${asTime(base)} became ${asTime(head)}, ${asChange(head / base)}`,
    }));
    const range = [0.4, marks.length + 0.6];
    const ends = [scope.low, scope.high, 1, known(scope.limit) ? 1 + scope.limit : null];
    chart(host, {
      title: "Pairs of sessions, base and head in turn",
      hint: `${marks.length} pairs; the band is the 90 % interval of their ratio`,
      x: { title: "pair", format: digits, whole: true, range },
      y: { title: "change", format: asChange, range: around([...marks.map((mark) => mark.y), ...ends]) },
      marks,
      paint: (pen) => {
        if (known(scope.low)) {
          pen.ctx.fillStyle = pen.paint.band;
          const top = pen.y(scope.high);
          pen.ctx.fillRect(pen.box.left, top, pen.box.width, pen.y(scope.low) - top);
        }
        thresholdLine(pen, scope.limit, range);
      },
    });
  }

  // --- the plots of all cases ----------------------------------------------------------------------

  function plotChanges(host, run, rows) {
    const found = rows.filter((row) => positive(row.ratio)).sort((a, b) => b.ratio - a.ratio);
    if (!found.length) return host.append(el("p", { class: "quiet" }, "No time here was compared with a record."));
    const marks = found.flatMap((row, i) => {
      const colour = tone(row.state);
      const text = `${row.label}: ${row.change}${row.interval ? `, 90 %: ${row.interval}` : ""} ${row.state}`;
      const open = () => go(run, row.case);
      const whole = { x: i + 1, y: row.ratio, low: row.low, high: row.high, colour, text, open };
      const pairs = (row.pairs || []).map(([base, head]) => ({
        x: i + 1.3,
        y: head / base,
        colour,
        shape: "diamond",
        open,
        text: `${row.label}: a pair, ${asTime(base)} became ${asTime(head)}, ${asChange(head / base)}`,
      }));
      return [whole, ...pairs];
    });
    const limits = [...new Set(found.map((row) => row.limit).filter(known))];
    const values = [1, ...marks.flatMap((mark) => [mark.y, mark.low, mark.high]), ...limits.map((each) => 1 + each)];
    const log = isWide(values);
    const range = [0.2, found.length + 0.8];
    const pairs = marks.length > found.length;
    return chart(host, {
      title: "Changes in order, each with its 90 % interval",
      hint: `${found.length} times compared${pairs ? "; diamonds are single pairs of both revisions" : ""}; a click opens a case`,
      height: 320,
      x: { title: "rank", format: digits, whole: true, range },
      y: { title: "change", format: asChange, log, range: around(values, { log }) },
      marks,
      dots: found.length > 200 ? 2.5 : 4,
      paint: (pen) => {
        thresholdLine(pen, limits.length === 1 ? limits[0] : null, range);
        if (limits.length < 2) return;
        found.forEach((row, i) => {
          if (!known(row.limit)) return;
          pen.line([[i + 0.6, 1 + row.limit], [i + 1.4, 1 + row.limit]], "bad", { width: 1.5 });
        });
      },
    });
  }

  function plotRoofline(host, run, rows) {
    const found = rows.filter((row) => positive(row.intensity) && positive(row.flop_s)).sort((a, b) => a.intensity - b.intensity);
    if (!found.length) {
      return host.append(el("p", { class: "quiet" }, "No kernel here declares both its bytes and its flops."));
    }
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
      hint: `${found.length} kernels; a line joins the variants of a problem; a click opens a case`,
      height: 380,
      legend: backends.map((text, i) => ({ text, ...look(i) })),
      x: { title: "FLOP a byte", format: asSize, log: true, range: xs },
      y: { title: "rate", format: asRate, log: true, range: ys },
      marks,
      dots: found.length > 200 ? 2.5 : 4,
      paint: (pen) => {
        const fastest = Math.max(...compute.map((each) => each[2]), 0);
        for (const [name, , rate, text] of memory) {
          const end = fastest ? Math.min(fastest / rate, xs[1]) : xs[1];
          pen.line([[xs[0], xs[0] * rate], [end, end * rate]], "soft", { width: 1.5 });
          const middle = Math.sqrt(xs[0] * end);
          const least = pen.box.left + 7.5 * `${name} ${text}`.length * pen.px;
          pen.label(`${name} ${text}`, Math.max(pen.x(middle) - 6 * pen.px, least), pen.y(middle * rate), "soft", "right");
        }
        for (const [i, [name, , rate, text]] of compute.entries()) {
          const start = memory.length ? rate / Math.max(...memory.map((each) => each[2])) : xs[0];
          pen.line([[Math.max(start, xs[0]), rate], [xs[1], rate]], "soft", { width: 1.5 });
          pen.label(`${name} ${text}`, pen.box.left + pen.box.width - 4 * pen.px, pen.y(rate) + (i ? 19 * pen.px : 0), "soft", "right");
        }
        for (const group of groups.values()) {
          if (group.length > 1) pen.line(group.map((row) => [row.intensity, row.flop_s]), "faint", { width: 0.75 });
        }
      },
    });
    return undefined;
  }

  function groupsOf(rows) {
    const groups = new Map();
    for (const row of rows) groups.set(row.group, [...(groups.get(row.group) || []), row]);
    return groups;
  }

  function plotSpeedups(host, run) {
    const choice = el(
      "select",
      { "aria-label": "problem", on: { change: () => show() } },
      ...run.speedups.map((each, i) => el("option", { value: i }, each.title)),
    );
    const place = el("div");
    host.append(el("p", {}, choice), place);
    const show = () => {
      forgetCharts(place);
      place.replaceChildren();
      const { axis, against, series } = run.speedups[choice.value];
      const marks = series.flatMap(([label, points], i) =>
        points.map(([x, y, index]) => ({
          x, y,
          ...look(i),
          open: () => go(run, index),
          text: `${label}, ${axis}=${x}: ${asFactor(y)}`,
        })),
      );
      const sizes = marks.map((mark) => mark.x);
      const factors = [1, ...marks.map((mark) => mark.y)];
      const log = isWide(sizes);
      const xs = around(sizes, { log });
      chart(place, {
        title: `Speed-up against ${against} by ${axis}`,
        hint: "more is faster; a click opens a case",
        height: 320,
        legend: series.map(([text], i) => ({ text, ...look(i) })),
        x: { title: axis, format: asSize, log, range: xs },
        y: { title: "speed-up", format: asFactor, log: isWide(factors), range: around(factors, { log: isWide(factors) }) },
        marks,
        dots: 4,
        paint: (pen) => {
          pen.line([[xs[0], 1], [xs[1], 1]], "soft");
          series.forEach(([, points], i) => pen.line(points, look(i).colour, { width: 1.5 }));
        },
      });
    };
    show();
  }

  // --- the table of cases --------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });
  const COLUMNS = [
    { title: "problem", text: "problem" },
    { title: "variant", text: "variant" },
    { title: "size", text: "size" },
    { title: "scope", text: "scope" },
    { title: "time", text: "time", number: "ns" },
    { title: "±", text: "uncertainty", number: "half", minor: true },
    { title: "rate", text: "rate", number: "per_s", minor: true },
    { title: "of ceiling", text: "ceiling", number: "share", minor: true },
    { title: "speed-up", text: "speedup", number: "factor", minor: true },
    { title: "error", text: "error", number: "error_n", minor: true, least: true },
    { title: "change", text: "change", number: "ratio" },
    { title: "verdict", text: "state", number: "rank" },
  ];
  const VERDICT = COLUMNS.length - 1;

  function prepared(run) {
    if (run.ready) return run;
    run.ready = true;
    run.cases = records(run.cases);
    run.places = new Map(run.cases.map((each, i) => [each.id, i]));
    run.rows = records(run.rows);
    for (const one of run.cases) one.scopes = [];
    for (const scope of records(run.scopes)) run.cases[scope.case].scopes.push(scope);
    run.rows.forEach((row, i) => {
      const found = run.cases[row.case];
      Object.assign(row, { place: i, problem: found.problem, backend: found.backend, variant: found.variant, size: found.size });
      row.label = `${found.id}${row.scope ? ` ${row.scope}` : ""}`;
      row.sought = `${row.label} ${found.nodeid} ${row.state}`.toLowerCase();
    });
    run.view = { text: "", state: "", backend: "", problem: "", scope: "", sort: VERDICT, down: false, shown: FIRST, scroll: 0 };
    return run;
  }

  function filtered(run) {
    const { text, sort, down, ...view } = run.view;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = ["state", "backend", "problem", "scope"].filter((name) => view[name]);
    const rows = run.rows.filter(
      (row) => chosen.every((name) => row[name] === view[name]) && words.every((word) => row.sought.includes(word)),
    );
    const { text: field, number } = COLUMNS[sort];
    const sign = down ? -1 : 1;
    const lacks = (row) => (number ? !known(row[number]) : !row[field]);
    return rows.sort((a, b) => {
      if (lacks(a) !== lacks(b)) return lacks(a) ? 1 : -1; // what has no value comes last either way
      const order = lacks(a) ? 0 : number ? a[number] - b[number] : collator.compare(a[field], b[field]);
      return sign * order || a.place - b.place;
    });
  }

  const classes = (column, number) =>
    [number && "number", column.minor && "minor", column.least && "least"].filter(Boolean).join(" ");

  function rowOf(run, row) {
    const name = el("a", { href: linkTo(run, row.case) }, ...breakable(row.variant));
    const cells = COLUMNS.map((column) => {
      if (column.title === "variant") return el("td", {}, name);
      if (column.title === "verdict") return el("td", {}, badge(row.state));
      if (column.title === "change") return changeCell(row);
      return el("td", { class: classes(column, column.number) }, row[column.text] ?? "");
    });
    return el("tr", { class: tone(row.state) }, ...cells);
  }

  function changeCell(row) {
    if (!known(row.ratio)) return el("td", { class: "number" });
    return el("td", { class: "number", title: row.interval && `90 %: ${row.interval}` }, row.change, strip(row));
  }

  // Draws a change with its interval between −10 % and +10 %, beside zero and the threshold.
  function strip({ ratio, low, high, limit, state }) {
    const at = (value) => 40 + Math.max(-37, Math.min(37, 370 * (value - 1)));
    const drawing = svg("svg", { class: `strip ${tone(state)}`, viewBox: "0 0 80 12", "aria-hidden": "true" });
    drawing.append(svg("path", { class: "zero", d: "M40 0V12" }));
    if (known(limit)) drawing.append(svg("path", { class: "limit", d: `M${at(1 + limit)} 0V12` }));
    if (known(low) && known(high)) {
      const [left, right] = [at(low), at(high)];
      drawing.append(svg("rect", { x: left, y: 4, width: Math.max(right - left, 1), height: 4, rx: 2 }));
    }
    drawing.append(svg("circle", { cx: at(ratio), cy: 6, r: 3 }));
    return drawing;
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
        head.children[i].firstChild.focus();
      };
      const button = el("button", { type: "button", on: { click: sort } }, column.title);
      head.append(el("th", { scope: "col", class: classes(column, column.number && i !== VERDICT) }, button));
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

  // --- the two pages -------------------------------------------------------------------------------

  function overview(run) {
    const { view } = run;
    const plots = [];
    const heading = el("span", { class: "quiet", role: "status" });
    const cases = el("section", { id: "cases" });
    let waiting = 0;
    const changed = () => {
      view.shown = FIRST;
      const rows = showRows();
      clearTimeout(waiting);
      waiting = setTimeout(() => plots.forEach((again) => again(rows)), 150);
    };
    const plotted = (title, open, draw) => {
      const box = folded(title, open, (body) => {
        const again = (rows) => {
          forgetCharts(body);
          body.replaceChildren();
          draw(body, run, rows);
        };
        again(filtered(run));
        if (draw !== plotSpeedups) plots.push(again);
      });
      return box;
    };
    const search = el("input", {
      type: "search", id: "search", value: view.text, placeholder: "part of a name", autocomplete: "off",
      on: { input: (event) => { view.text = event.target.value; changed(); } },
    });
    const filter = el(
      "form",
      { class: "filter no-print", role: "search", on: { submit: (event) => event.preventDefault() } },
      el("label", {}, "search", search),
      ...["state", "backend", "problem", "scope"].map((name) => choice(run, name, changed)),
      heading,
    );
    const compared = run.rows.some((row) => known(row.ratio));
    main.replaceChildren(
      el("h1", {}, badge(run.outcome), " ", run.verdict),
      facts(run.facts),
      ...(run.problems.length ? [section("Went wrong", listOf(run.problems))] : []),
      ...(run.since.length || run.canaries.length ? [section("The run as a whole", listOf(run.since), canaries(run))] : []),
      ...(run.told.length ? [section("What needs a reader", toldList(run))] : []),
      ...(run.closing.length ? [section("Next", ...run.closing.map((text) => el("pre", {}, text)))] : []),
      el("h2", {}, "Cases"),
      filter,
      ...(compared ? [plotted("Changes in order", true, plotChanges)] : []),
      ...(run.rows.some((row) => known(row.intensity)) ? [plotted("Roofline", false, plotRoofline)] : []),
      ...(run.speedups.length ? [plotted("Speed-up by size", false, plotSpeedups)] : []),
      cases,
      ...(run.skips.length ? [section("Did not run", listOf(run.skips))] : []),
      el("p", { class: "quiet no-print keys" }, "Keys: / searches, j and k go through the rows, Enter opens a case, Escape comes back. In a plot, dragging zooms and a double click shows all again."),
    );
    const showRows = caseTable(run, cases, heading);
    showRows();
    document.title = [run.outcome, run.verdict].filter(Boolean).join(": ");
  }

  function facts(pairs) {
    return el("dl", {}, ...pairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  }

  function canaries(run) {
    return run.canaries.length ? tableOf(["canary", ["time", true], ["change", true], ""], run.canaries) : "";
  }

  function toldList(run) {
    const entry = ([kind, text, who]) => {
      const links = who.slice(0, 3).flatMap(([index, label], i) => [
        i ? ", " : "",
        known(index) ? el("a", { href: linkTo(run, index) }, label) : label,
      ]);
      const more = who.length > 3 ? ` and ${who.length - 3} more` : "";
      return el("li", {}, badge(kind), " ", ...links, more, el("div", { class: "reason" }, text));
    };
    const first = el("ul", { class: "told" }, ...run.told.slice(0, 10).map(entry));
    const others = run.told.slice(10);
    if (!others.length) return first;
    return el("div", {}, first, folded(`${others.length} more`, false, (body) => body.append(el("ul", { class: "told" }, ...others.map(entry)))));
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
      el("nav", { class: "no-print" }, el("a", { href: run.number ? `#run=${run.number}` : "#", rel: "up" }, "← all cases"), step(-1, "previous"), step(1, "next")),
      el("h1", {}, ...states.flatMap((state) => [badge(state), " "]), one.id),
      facts(one.facts),
      ...(one.told.length ? [section("In words", el("ul", { class: "told" }, ...one.told.map(([kind, text, key]) => el("li", {}, badge(kind), " ", key, " ", el("span", { class: "reason" }, text)))))] : []),
      ...(scopes.length ? [section("Times", timesTable(scopes))] : []),
      ...(one.errors.length ? [section("Errors", tableOf(run.error_titles, one.errors))] : []),
      ...(one.kernels.length ? [section("Kernels", tableOf(run.kernel_titles, one.kernels))] : []),
      ...(one.observed.length ? [section("Observed", tableOf(["of", "observer", "what it saw"], one.observed.map(([of, ...rest]) => [of || "the test", ...rest])))] : []),
      section("Repeat it", el("pre", {}, one.command)),
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
      ...(scope.work ? [el("h3", {}, scope.work.title), tableOf(run.work_titles, scope.work.rows), listOf(scope.work.notes)] : []),
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
      overview(run);
      requestAnimationFrame(() => window.scrollTo(0, run.view.scroll));
    } else {
      casePage(run, index);
      window.scrollTo(0, 0);
    }
    last = { run, onCase: index !== undefined, scroll: window.scrollY };
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
      if (typing) document.activeElement.blur();
      else document.querySelector("a[rel=up]")?.click();
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
      document.documentElement.classList.toggle("printed", printed);
      redrawCharts();
    });
  }
  route();
})();
