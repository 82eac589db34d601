"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const make = (kind, name, text) => {
  const element = document.createElement(kind);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};

// A time with three digits and its unit, as `probe report` shows it.
function time(ns) {
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  for (const [unit, size, most] of [["µs", 1e3, 1e6], ["ms", 1e6, 1e9], ["s", 1e9, Infinity]]) {
    if (ns >= most) continue;
    const value = ns / size;
    return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
  }
}
const count = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");
const share = (part, all) => all > 0 ? `${(100 * part / all).toFixed(1)} %` : "";

// The same colour for the same function, everywhere.
function colour(name) {
  let hash = 2166136261;
  for (const c of name) hash = Math.imul(hash ^ c.codePointAt(0), 16777619);
  const n = hash >>> 0;
  return `oklch(${0.76 + (n >> 8) % 8 / 100} 0.085 ${(n % 30) * 12})`;
}

let wanted = "";
const matches = (name) => wanted !== "" && name.toLowerCase().includes(wanted);

// ---- what is under the pointer ----
const tip = at("tip");
document.addEventListener("mousemove", (event) => {
  const of = event.target.closest?.("[data-tip]");
  tip.style.display = of ? "block" : "none";
  if (!of) return;
  tip.textContent = of.dataset.tip;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
});

// ---- the head ----
at("program").textContent = data.program.split("/").pop() || "a record";
at("program").dataset.tip = data.program || "a record";
document.title = `${at("program").textContent} · probe report`;
const facts = [
  ["", new Date(data.began_ms).toISOString().replace("T", " ").slice(0, 19) + " UTC"],
  [count(data.events), "events"], [count(data.functions.length), "functions"],
  [count(data.thread_count), data.thread_count === 1 ? "thread" : "threads"], [time(data.end_ns - data.start_ns), "from the first to the last"],
];
for (const [number, what] of facts) {
  at("facts").append(make("b", "", number), ` ${what} · `);
}
at("facts").append(make("span", data.lost ? "bad" : "", data.lost ? `${count(data.lost)} events LOST` : "none lost"));
if (!data.is_whole) at("facts").append(make("span", "bad", " · the record has no end"));

// ---- functions ----
const timed = data.functions.some((f) => f.total_ns !== undefined);
const columns = [
  ["total_ns", "total"], ["self_ns", "self"], ["calls", "calls"], ["min_ns", "min"], ["median_ns", "median"], ["p99_ns", "p99"], ["max_ns", "max"],
].filter(([key]) => timed || key === "calls");
let sorted = timed ? "total_ns" : "calls", isUp = false, picked = null;
const whole = data.functions.reduce((sum, f) => sum + (f.self_ns ?? 0), 0);

function table() {
  const head = make("tr");
  for (const [key, name] of [...columns, ["name", "function"]]) {
    const cell = make("th", (key === "name" ? "name " : "") + (key === sorted ? "sorted" : ""), name + (key === sorted ? (isUp ? " ↑" : " ↓") : ""));
    cell.onclick = () => { isUp = key === sorted ? !isUp : key === "name"; sorted = key; table(); };
    head.append(cell);
  }
  at("head").replaceChildren(head);
  const value = (f) => f[sorted] ?? -1;
  const rows = data.functions.filter((f) => wanted === "" || matches(f.name));
  rows.sort((a, b) => (isUp ? 1 : -1) * (sorted === "name" ? a.name.localeCompare(b.name) : value(a) - value(b)));
  if (!rows.includes(picked)) picked = rows[0] ?? null;
  const body = rows.slice(0, 1000).map((f) => {
    const row = make("tr", f === picked ? "picked" : "");
    for (const [key] of columns) {
      const cell = make("td", "", f[key] === undefined ? "" : key === "calls" ? count(f[key]) : time(f[key]));
      if (key === "self_ns" && f.self_ns !== undefined && whole > 0) {
        cell.className = "share";
        cell.style.setProperty("--share", `${100 * f.self_ns / whole}%`);
        cell.dataset.tip = `${share(f.self_ns, whole)} of the time in all functions`;
      }
      row.append(cell);
    }
    const name = make("td", "name", f.name);
    name.dataset.tip = f.name;
    row.append(name);
    row.onclick = () => { picked = f; table(); };
    return row;
  });
  at("rows").replaceChildren(...body);
  at("shown").textContent = rows.length > 1000 ? `the first 1000 of ${count(rows.length)}` : "click a head to sort, a row for its histogram";
  histogram();
}

function histogram() {
  const into = at("histogram");
  const buckets = picked?.buckets ?? [];
  at("of").textContent = picked ? (buckets.length ? `${picked.name}: how long ${count(picked.calls)} calls took` : `${picked.name}: hits take no time`) : "no function is chosen";
  const most = Math.max(1, ...buckets.map(([, n]) => n));
  into.replaceChildren(...buckets.flatMap(([from, n]) => {
    const bar = make("div");
    bar.style.width = `${100 * n / most}%`;
    if (n === 0) bar.style.visibility = "hidden";
    return [make("span", "", time(from)), make("span", "count", count(n)), bar];
  }));
}

// ---- the flame graph ----
const nodes = data.flame.map(([parent, name, total, own, calls], index) => ({ parent, name, total, own, calls, index, inside: [] }));
nodes.forEach((node) => { if (node.parent >= 0) nodes[node.parent].inside.push(node); });
const root = nodes[0];
let zoomed = root;

function flame() {
  const into = at("flame");
  into.replaceChildren();
  if (!root || root.total === 0) {
    into.append(make("p", "none", "There are no calls with a time: they need return probes (-p 'r …')."));
    return;
  }
  const width = into.clientWidth, high = 21;
  let deepest = 0;
  const block = (node, left, wide, depth, isAbove) => {
    deepest = Math.max(deepest, depth);
    const element = make("div", `block${isAbove ? " above" : ""}${matches(node.name) ? " found" : ""}`, wide > 24 ? node.name : "");
    element.style.cssText = `left:${left}px;top:${depth * high}px;width:${Math.max(wide, 1)}px;background:${node.parent < 1 ? "light-dark(#d9dce1, #8b919b)" : colour(node.name)}`;
    if (wide < 8) { element.style.padding = "0"; element.style.borderWidth = "0"; }
    element.dataset.tip = `${node.name}\n${time(node.total)} in all (${share(node.total, root.total)}), ${time(node.own)} itself` + (node.calls ? `, ${count(node.calls)} calls, ${time(node.total / node.calls)} each` : "");
    element.onclick = () => { zoomed = node; flame(); };
    into.append(element);
  };
  const above = [];
  for (let node = zoomed; node.parent >= 0; node = nodes[node.parent]) above.unshift(nodes[node.parent]);
  above.forEach((node, depth) => block(node, 0, width, depth, true));
  const all = [[zoomed, 0, above.length]];
  const scale = width / zoomed.total;
  while (all.length) {
    const [node, left, depth] = all.pop();
    const wide = node.total * scale;
    if (wide < 0.6) continue;
    block(node, left, wide, depth, false);
    let next = left;
    for (const inside of node.inside) { all.push([inside, next, depth + 1]); next += inside.total * scale; }
  }
  into.style.height = `${(deepest + 1) * high}px`;
}

// ---- the time line ----
let from = 0, to = Math.max(data.end_ns, 1);
const first = data.start_ns;
from = first;

function line() {
  const into = at("threads");
  into.replaceChildren();
  const axis = make("div", "axis"), ticks = make("div");
  axis.append(make("span"), ticks);
  axis.firstChild.style.position = "static";
  for (let tick = 0; tick <= 8; tick++) {
    const label = make("span", "", `+${time(from - first + (to - from) * tick / 8)}`);
    label.style.left = `${100 * tick / 8}%`;
    ticks.append(label);
  }
  into.append(axis);
  for (const [index, thread] of data.threads.entries()) {
    const row = make("div", "thread");
    const who = make("div", "who", thread.name);
    who.append(make("small", "", `${thread.tid === null ? "" : `${thread.pid}/${thread.tid} · `}${count(thread.events)} events`));
    who.dataset.tip = `${thread.name} ${thread.tid === null ? "" : `process ${thread.pid}, thread ${thread.tid}`}`;
    const right = make("div");
    const lanes = make("div", "lanes");
    row.append(who, right);
    into.append(row);
    right.append(density(thread, right.clientWidth), lanes);
    const slices = data.slices.filter((slice) => slice[0] === index && slice[3] < to && slice[3] + slice[4] > from);
    const width = right.clientWidth, scale = width / (to - from);
    let deepest = -1;
    for (const [, depth, name, start, took, args] of slices) {
      const left = Math.max(0, (start - from) * scale), end = Math.min(width, (start + took - from) * scale);
      if (end - left < 0.7) continue;
      deepest = Math.max(deepest, depth);
      const element = make("div", `slice${matches(data.names[name]) ? " found" : ""}`, end - left > 24 ? data.names[name] : "");
      element.style.cssText = `left:${left}px;top:${depth * 21}px;width:${Math.max(end - left, 1)}px;background:${colour(data.names[name])}`;
      if (end - left < 8) { element.style.padding = "0"; element.style.borderWidth = "0"; }
      element.dataset.tip = `${data.names[name]}(${args})\n${time(took)}, from +${time(start - first)} on`;
      element.onclick = () => { [from, to] = [start - took * 0.02, start + took * 1.02]; line(); };
      lanes.append(element);
    }
    lanes.style.height = `${(deepest + 1) * 21}px`;
  }
  at("reset").hidden = from === first && to === data.end_ns;
}

// Events of a thread over the time, as columns.
function density(thread, width) {
  const canvas = make("canvas", "density");
  const ratio = devicePixelRatio || 1, high = 26;
  [canvas.width, canvas.height] = [Math.max(1, width * ratio), high * ratio];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = getComputedStyle(document.body).getPropertyValue("--blue-now");
  const most = Math.max(1, ...thread.bins);
  const scale = width / (to - from);
  thread.bins.forEach((n, bin) => {
    const [left, right] = [0, 1].map((end) => Math.round((first + (bin + end) * data.bin_ns - from) * scale));
    if (n === 0 || right < 0 || left > width) return;
    const tall = Math.max(1.5, (high - 2) * n / most);
    context.fillRect(left, high - tall, Math.max(right - left, 1), tall);
  });
  canvas.dataset.tip = `events in each ${time(data.bin_ns)}: at most ${count(most)}`;
  return canvas;
}

// A canvas knows no variables.
function blue() {
  const probe = make("span");
  probe.style.color = "var(--blue)";
  document.body.append(probe);
  document.body.style.setProperty("--blue-now", getComputedStyle(probe).color);
  probe.remove();
}

function draw() { blue(); table(); flame(); line(); }
at("search").oninput = (event) => { wanted = event.target.value.trim().toLowerCase(); draw(); };
at("theme").onclick = () => {
  const isDark = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number)[0] < 128;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  draw();
};
at("reset").onclick = () => { [from, to] = [first, data.end_ns]; line(); };
at("unzoom").onclick = () => { zoomed = root; flame(); };
addEventListener("resize", () => { flame(); line(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== at("search")) { event.preventDefault(); at("search").focus(); }
});
draw();
document.documentElement.dataset.drawn = "yes";
