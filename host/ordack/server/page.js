"use strict";
// The page of a running `ordack serve`. Whatever a peer or an application has chosen is set as text, never as markup.
const EVERY_MS = 2000, PATIENCE_MS = 10000, OLD_S = 20, SHOWN = 50, SPARK = 150, LONGEST = 300;
const KEY = "ordack-token";
const number = new Intl.NumberFormat("en");
const $ = id => document.getElementById(id);

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  element.append(...children);
  return element;
}

const count = value => number.format(value);
const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const moment = seconds => new Date(seconds * 1000).toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "medium"});
const name = text => make("span", {className: "name"}, text);
const short = text => text.length > LONGEST ? text.slice(0, LONGEST) + "…" : text;
const milliseconds = value => value === null ? "–" : number.format(Number(value.toPrecision(3))) + " ms";

function size(bytes) {
  for (const [unit, one] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (bytes >= one) return `${number.format(Number((bytes / one).toPrecision(3)))} ${unit}`;
  return `${bytes} B`;
}

function span(seconds) {
  for (const [unit, one] of [["days", 86400], ["h", 3600], ["min", 60]]) if (seconds >= 2 * one) return `${Math.round(seconds / one)} ${unit}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}

function reason(text) {  // of an answer that is none: a line, or an object with problems
  try {
    return JSON.parse(text).problems.join("; ");
  } catch {
    return text.trim();
  }
}

function cell(label, className, ...children) {
  const found = make("td", {className}, ...children);
  if (label) found.dataset.label = label;
  return found;
}

// ---- plots

function round(value) {  // up, to what a scale may end with
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map(digit => digit * power).find(limit => limit >= value * 0.999);
}

// lines: {className, value(sample)}. The newest sample is at the right; where a value is null, the line has a gap.
function plot(place, samples, lines, least, told) {
  const width = Math.max(place.clientWidth, 240), height = 190, left = 46, top = 8, bottom = 22, right = 6;
  const newest = samples.length ? samples[samples.length - 1].time : 0;
  const oldest = Math.min(samples.length ? samples[0].time : 0, newest - 60);
  const most = round(Math.max(least, ...samples.flatMap(one => lines.map(line => line.value(one) ?? 0))));
  const x = time => left + (time - oldest) / (newest - oldest) * (width - left - right);
  const y = value => top + (1 - value / most) * (height - top - bottom);
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told(samples[samples.length - 1])});
  for (const part of [0, 0.5, 1]) {
    svg.append(draw("line", {class: "grid", x1: left, x2: width - right, y1: y(part * most), y2: y(part * most)}));
    svg.append(draw("text", {x: left - 6, y: y(part * most) + 4, "text-anchor": "end"}, number.format(part * most)));
  }
  const step = [15, 30, 60, 120, 300].find(seconds => (newest - oldest) / seconds <= width / 90);
  for (let time = Math.ceil(oldest / step) * step; time <= newest; time += step) {
    const text = step < 60 ? clock(time) : clock(time).slice(0, 5);
    if (x(time) > left + 18 && x(time) < width - 26) svg.append(draw("text", {x: x(time), y: height - 5, "text-anchor": "middle"}, text));
  }
  for (const line of lines) {
    let path = "", area = "", begin = null, last = null;
    for (const one of [...samples, null]) {
      const value = one && line.value(one);
      if (value === null) {
        if (begin !== null) area += `L${x(last)} ${y(0)}L${x(begin)} ${y(0)}Z`;
        begin = null;
        continue;
      }
      const to = `${begin === null ? "M" : "L"}${x(one.time).toFixed(1)} ${y(value).toFixed(1)}`;
      if (begin === null) begin = one.time;
      last = one.time;
      path += to;
      area += to;
      svg.append(...(samples.length < 3 || one === samples[samples.length - 1] ? [draw("circle", {class: "dot " + line.className, cx: x(one.time), cy: y(value), r: 3})] : []));
    }
    svg.prepend(draw("path", {class: "area " + line.className, d: area}));
    svg.append(draw("path", {class: "line " + line.className, d: path}));
  }
  const cursor = draw("line", {class: "cursor", y1: top, y2: height - bottom, visibility: "hidden"});
  const note = draw("text", {y: top + 10, visibility: "hidden"});
  svg.append(cursor, note);
  const point = () => {
    const at = oldest + (place.pointed - left) / (width - left - right) * (newest - oldest);
    const one = samples.reduce((best, sample) => Math.abs(sample.time - at) < Math.abs(best.time - at) ? sample : best);
    cursor.setAttribute("x1", x(one.time));
    cursor.setAttribute("x2", x(one.time));
    note.textContent = `${clock(one.time)}  ${told(one)}`;
    const isRight = x(one.time) > width / 2;
    note.setAttribute("x", x(one.time) + (isRight ? -6 : 6));
    note.setAttribute("text-anchor", isRight ? "end" : "start");
    for (const part of [cursor, note]) part.setAttribute("visibility", "visible");
  };
  svg.addEventListener("pointermove", event => {
    place.pointed = event.clientX - svg.getBoundingClientRect().left;
    point();
  });
  svg.addEventListener("pointerleave", () => {
    place.pointed = null;
    for (const part of [cursor, note]) part.setAttribute("visibility", "hidden");
  });
  if (samples.length && (place.pointed ?? null) !== null) point();  // it was there before
  place.replaceChildren(...(samples.length ? [svg] : [make("p", {className: "quiet"}, "The first numbers come in a moment.")]));
}

function plots(told) {
  const samples = told.samples.map(([time, queued, outgoing, commits, mean, slowest]) => ({time, queued, outgoing, commits, mean, slowest}));
  plot($("depth"), samples, [{className: "here", value: one => one.queued}, {className: "away", value: one => one.outgoing}], 10,
    one => one ? `${count(one.queued)} here, ${count(one.outgoing)} to be sent` : "");
  plot($("commits"), samples, [{className: "slowest", value: one => one.slowest}, {className: "mean", value: one => one.mean}], 1,
    one => !one ? "" : one.commits ? `${many(one.commits, "commit")}, mean ${milliseconds(one.mean)}, slowest ${milliseconds(one.slowest)}` : "no commits");
}

const seen = new Map();  // of each queue that is shown: how many messages it had, since the page is open

function spark(queue) {
  const numbers = seen.get(queue.name) ?? [];
  const most = Math.max(1, ...numbers);
  const points = numbers.map((value, at) => `${(at / Math.max(numbers.length - 1, 1) * 128 + 1).toFixed(1)} ${(21 - value / most * 20).toFixed(1)}`);
  return draw("svg", {class: "spark", viewBox: "0 0 130 22", "aria-hidden": "true"}, draw("path", {d: points.length > 1 ? "M" + points.join("L") : ""}));
}

function remember(queues) {
  const names = new Set(queues.map(queue => queue.name));
  for (const known of [...seen.keys()]) if (!names.has(known)) seen.delete(known);
  for (const queue of queues) seen.set(queue.name, [...(seen.get(queue.name) ?? []), queue.messages].slice(-SPARK));
}

// ---- what the queue manager tells

function verdict(told) {
  const section = $("verdict");
  document.title = told.problem_count ? `(${count(told.problem_count)}) ordack` : "ordack";
  if (!told.problem_count) {
    section.className = "verdict good";
    section.replaceChildren(make("h2", {}, "All is well"));
    return;
  }
  section.className = "verdict bad";
  const more = told.problem_count - told.problems.length;
  section.replaceChildren(
    make("h2", {}, `${many(told.problem_count, "thing")} to look at`),
    make("ul", {}, ...told.problems.map(text => make("li", {}, short(text))), ...(more ? [make("li", {}, `and ${count(more)} more`)] : [])));
}

function figures(told) {
  const last = told.samples[told.samples.length - 1];
  const dead = told.kept.reduce((sum, queue) => sum + queue.messages, 0);
  const rows = [
    ["Messages in queues here", last ? count(last[1]) : "–"],
    ["Waiting for others", last ? count(last[2]) : "–"],
    ["Connected", `${count(told.connected)} of ${count(told.peer_count)}`],
    ["Dead letters", count(dead), dead > 0],
    ["A commit takes", milliseconds(told.samples.reduce((mean, sample) => sample[4] ?? mean, null))],
    ["Room for", size(Math.max(0, told.room)), told.room < 5e6],
  ];
  $("figures").replaceChildren(...rows.map(([title, value, bad]) => make("div", {className: bad ? "bad" : ""}, make("dt", {}, title), make("dd", {}, value))));
}

function waiting(told) {
  $("waiting").replaceChildren(...told.outgoing.slice(0, SHOWN).map(queue => make("li", {},
    make("span", {className: "strong"}, short(queue.peer_name ?? queue.format_name)),
    make("span", {className: "number"}, `${many(queue.messages, "message")}, ${size(queue.bytes)}`),
    make("span", {className: "why"}, short(queue.why), ...(queue.peer_name ? [make("br"), make("span", {className: "name small"}, short(queue.format_name))] : [])))));
  const more = told.outgoing_count - Math.min(told.outgoing.length, SHOWN);
  $("waiting-more").textContent = more > 0 ? `and ${count(more)} more destinations` : told.outgoing_count ? "" : "Nothing waits.";
}

function quota(queue) {
  if (queue.quota === null) return [];
  const part = queue.quota ? queue.bytes / queue.quota : 1;
  return [make("meter", {min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, value: Math.min(part, 1)}), ` ${Math.round(100 * part)} % of ${size(queue.quota)}`];
}

function queues(told) {
  const wanted = $("search").value.trim().toLowerCase();
  const found = told.queues.filter(queue => queue.name.toLowerCase().includes(wanted));
  const kind = queue => queue.system ? "of the queue manager" : queue.transactional ? "transactional" : "not transactional";
  document.querySelector("#queues tbody").replaceChildren(...found.slice(0, SHOWN).map(queue => make("tr", {},
    cell("", "", name(queue.name), " ", make("span", {className: "small"}, kind(queue))),
    cell("messages", "number", count(queue.messages)),
    cell("", "wide", spark(queue)),
    cell("size", "number", size(queue.bytes)),
    cell("quota", "", ...quota(queue)),
    cell("oldest", "number", queue.oldest === null ? "" : span(told.time - queue.oldest)))));
  const shown = Math.min(found.length, SHOWN);
  $("queues-more").textContent = shown < told.queue_count ? `${count(shown)} of ${count(told.queue_count)}, the fullest first` : "";
}

function peers(told) {
  const lines = told.serial.map(line => make("tr", {},
    cell("", "", make("span", {className: "strong"}, short(line.host)), " ", make("span", {className: "small"}, "serial line")),
    cell("", "", make("span", {className: "badge " + (line.state === "Connected" ? "yes" : "")}, line.state)),
    cell("", "number"),
    cell("", "", name(line.serial))));
  const rows = told.peers.slice(0, SHOWN).map(peer => make("tr", {},
    cell("", "", make("span", {className: "strong"}, short(peer.name ?? peer.via)), " ", make("span", {className: "name small"}, peer.guid)),
    cell("", "", make("span", {className: "badge " + (peer.sessions ? "yes" : "")}, peer.sessions > 1 ? `connected ${peer.sessions} times` : peer.sessions ? "connected" : "gone")),
    cell("heard", "number", `${span(peer.silent_s)} ago`),
    cell("", "", name(peer.address))));
  document.querySelector("#peers tbody").replaceChildren(...lines, ...rows);
  const more = told.peer_count - Math.min(told.peers.length, SHOWN);
  $("refusals").textContent = told.refused && "Refused since the start: " + told.refused;
  $("peers-more").textContent = more > 0 ? `and ${count(more)} more` : rows.length + lines.length ? "" : "None has connected since the start.";
}

function show(told) {
  $("store").textContent = told.store;
  $("served").textContent = told.since ? `served since ${moment(told.since)} by process ${told.process}, listening on ${told.listening}` : "";
  remember(told.queues);
  verdict(told);
  figures(told);
  plots(told);
  waiting(told);
  queues(told);
  peers(told);
  tabs(told);
}

// ---- again and again

let told = null, asked = 0, timer = 0, came = 0, isGone = false, goneSince = 0;

async function look() {
  clearTimeout(timer);
  const mine = ++asked;
  try {
    const answer = await fetch("overview", {cache: "no-store", signal: AbortSignal.timeout?.(PATIENCE_MS)});
    if (!answer.ok) throw new Error(reason(await answer.text()));
    const news = await answer.json();
    if (mine !== asked) return;
    if (!told || news.time !== told.time) came = performance.now();
    told = news;
    isGone = false;
    show(told);
  } catch (error) {
    if (mine !== asked) return;
    if (!isGone) goneSince = Date.now() / 1000;
    isGone = true;
    $("verdict").className = "verdict bad";
    const why = error instanceof TypeError || error.name === "TimeoutError" ? "Nothing answers: `ordack serve` has ended, or the network is gone." : short(error.message);
    $("verdict").replaceChildren(make("h2", {}, `No answer since ${clock(goneSince)}`), make("p", {}, why), ...(told ? [make("p", {}, `What is below is as of ${clock(told.time)}.`)] : []));
  }
  age();
  if (!document.hidden) timer = setTimeout(look, EVERY_MS);
}

function age() {
  const seconds = (performance.now() - came) / 1000;
  const isOld = isGone || (told && seconds > OLD_S);
  document.body.classList.toggle("old", Boolean(isOld));
  $("fresh").className = isOld ? "warn" : "quiet";
  $("fresh").textContent = !told ? "" : `as of ${clock(told.time)}` + (isOld ? `, ${span(seconds)} old` : "");
}

setInterval(age, 1000);
document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : look());
$("search").addEventListener("input", () => told && queues(told));
addEventListener("resize", () => told && plots(told));

// ---- dead letters, for whoever has the token

let queue = "", place = "", next = null, rows = [], before = null, isBusy = false;
const chosen = new Set();

function tabs(told) {
  const kept = told.kept, dead = kept.find(one => one.name === queue);
  if (!dead && kept.length) choose(kept[0].name);
  $("tabs").replaceChildren(...kept.map(one => {
    const button = make("button", {type: "button", onclick: () => choose(one.name)}, `${one.name} (${count(one.messages)})`);
    button.setAttribute("aria-pressed", String(one.name === queue));
    return button;
  }));
  const token = sessionStorage.getItem(KEY);
  $("locked").textContent =
    !kept.length ? "There are none." : !told.can_act
      ? "How many there are is all that is shown: no token is set. With http-token-file in ordack.toml this page shows them and moves them back; host/docs/operating.md says how."
      : token ? "" : "What is in them is shown to whoever has the token, which is in the file that http-token-file in ordack.toml names.";
  $("unlock").hidden = !told.can_act || Boolean(token) || !kept.length;
  $("plain").hidden = isSecureContext;
  $("open").hidden = !token || !told.can_act || !(kept.length || rows.length);
  const now = kept.find(one => one.name === queue)?.messages ?? 0;
  if (token && told.can_act && now !== before && (kept.length || rows.length) && !isBusy) {
    before = now;
    letters();
  }
}

function choose(name) {
  queue = name;
  place = "";
  before = null;
  chosen.clear();
  $("told").textContent = "";
  if (told) tabs(told);
}

async function ask(path, options) {
  const answer = await fetch(path, {...options, cache: "no-store", headers: {Authorization: "Bearer " + sessionStorage.getItem(KEY)}});
  const text = await answer.text();
  if (answer.status === 401) forget();
  if (!answer.ok) throw new Error(reason(text));
  return JSON.parse(text);
}

function refuse(error) {
  $("refused").hidden = !error;
  $("refused").textContent = error ? short(error.message) : "";
}

function forget() {
  sessionStorage.removeItem(KEY);
  rows = [];
  before = null;
  chosen.clear();
  $("letters").replaceChildren();
  if (told) tabs(told);
}

async function letters() {
  const wanted = queue, from = place;
  try {
    const found = await ask(`dead-letters?queue=${encodeURIComponent(wanted)}${from ? "&after=" + encodeURIComponent(from) : ""}`);
    if (wanted !== queue || from !== place) return;
    refuse(null);
    ({rows, next} = found);
    if (!rows.length && place) {
      place = "";
      letters();
      return;
    }
  } catch (error) {
    refuse(error);
    return;
  }
  for (const key of [...chosen]) if (!rows.some(row => row.key === key)) chosen.delete(key);
  $("letters").replaceChildren(...rows.map(letter));
  $("first").disabled = !place;
  $("next").disabled = next === null;
  ready();
}

function named(called, text) {
  return called ? [make("span", {className: "strong"}, called), " ", name(text)] : [name(text)];
}

function letter(row) {
  const box = make("input", {type: "checkbox", checked: chosen.has(row.key), ariaLabel: "choose this message", onchange: () => {
    if (box.checked) chosen.add(row.key);
    else chosen.delete(row.key);
    ready();
  }});
  const body = row.text ?? row.hex;
  return make("li", {}, box, make("div", {},
    make("div", {className: "head"},
      make("span", {className: row.label ? "strong" : "quiet"}, row.label || "without a label"),
      ...(row.class ? [make("span", {className: "badge no"}, row.class_name ?? `class ${row.class}`)] : []),
      ...(row.in_doubt ? [make("span", {className: "badge maybe"}, "in doubt")] : []),
      make("span", {className: "small when"}, `${size(row.size)}, sent ${moment(row.sent)}`)),
    ...(row.words ? [make("div", {className: "words"}, row.class_name ? row.words.replace(/ \(class [^)]*\)$/, "") : row.words)] : []),
    make("div", {className: "small"}, "to ", ...named(row.destination_name, row.destination), " from ", ...named(row.source_name, row.source)),
    ...(body ? [make("pre", {}, body + (row.text === null && row.size > 64 || row.text !== null && row.text.length >= 300 ? " …" : ""))] : [])));
}

function ready() {
  $("move").disabled = !chosen.size || isBusy;
  const to = $("to").value.trim();
  $("move").textContent = `Move ${chosen.size ? many(chosen.size, "message") : ""} ${to ? "there" : "back"}`.replace("  ", " ");
  $("all").checked = rows.length > 0 && chosen.size === rows.length;
}

async function move() {
  isBusy = true;
  ready();
  $("told").textContent = "moving …";
  try {
    const done = await ask("dead-letters", {method: "POST", body: JSON.stringify(
      {queue, keys: [...chosen], destination: $("to").value.trim() || null, in_doubt: $("doubt").checked})});
    const reasons = [...new Set(done.stayed.map(one => one.reason))];
    const stayed = done.stayed.length ? `; ${count(done.stayed.length)} stayed: ${reasons.slice(0, 3).map(short).join("; ")}` : "";
    $("told").textContent = `${many(done.moved.length, "message")} moved${stayed}.`;
    refuse(null);
    for (const one of done.moved) chosen.delete(one.key);
  } catch (error) {
    $("told").textContent = "";
    refuse(error);
  }
  isBusy = false;
  ready();
  if (sessionStorage.getItem(KEY)) await letters();
  look();
}

$("unlock").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value.trim());
  $("token").value = "";
  refuse(null);
  if (told) tabs(told);
});
$("all").addEventListener("change", () => {
  for (const row of rows) if ($("all").checked) chosen.add(row.key); else chosen.delete(row.key);
  $("letters").replaceChildren(...rows.map(letter));
  ready();
});
$("to").addEventListener("input", ready);
$("move").addEventListener("click", move);
$("forget").addEventListener("click", forget);
$("first").addEventListener("click", () => { place = ""; letters(); });
$("next").addEventListener("click", () => { place = next; letters(); });

look();
