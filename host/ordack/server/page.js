"use strict";
// The page of a running `ordack serve`. Text from peers and applications is never set as markup.
const EVERY_MS = 2000, PATIENCE_MS = 10000, OLD_S = 20, SHOWN = 50, LONGEST = 300, DONE_MS = 8000;
const NO_ANSWER = "The server does not answer. Check that `ordack serve` runs and that this machine reaches it.";
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
const rounded = value => number.format(value < 10 ? Number(value.toFixed(1)) : Math.round(value));
const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const moment = seconds => new Date(seconds * 1000).toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "medium"});
const name = text => make("span", {className: "name"}, text);
const short = text => text.length > LONGEST ? text.slice(0, LONGEST) + "…" : text;

function size(bytes) {
  for (const [unit, one] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (bytes >= one) return `${number.format(Number((bytes / one).toPrecision(3)))} ${unit}`;
  return `${bytes} B`;
}

function span(seconds) {
  for (const [unit, one] of [["days", 86400], ["h", 3600], ["min", 60]]) if (seconds >= 2 * one) return `${Math.round(seconds / one)} ${unit}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}

function cell(label, className, ...children) {
  const found = make("td", {className}, ...children);
  if (label) found.dataset.label = label;
  return found;
}

// ---- the plot

function round(value) {  // up to a round end of a scale
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map(digit => digit * power).find(limit => limit >= value * 0.999);
}

// Two lines. A sample is a time and two values; the newest one is at the right. told: a text for both values.
function plot(place, samples, told) {
  if (!samples.length) {
    place.replaceChildren(make("p", {className: "quiet"}, "The first figures follow in a few seconds."));
    return;
  }
  const width = Math.max(place.clientWidth, 240), height = 190, left = 46, top = 8, bottom = 22, right = 6;
  const last = samples[samples.length - 1], newest = last[0], oldest = Math.min(samples[0][0], newest - 60);
  const most = round(Math.max(1, ...samples.flatMap(([, here, away]) => [here, away])));
  const x = time => left + (time - oldest) / (newest - oldest) * (width - left - right);
  const y = value => top + (1 - value / most) * (height - top - bottom);
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told(...last.slice(1, 3).map(count))});
  for (const part of [0, 0.5, 1]) {
    svg.append(draw("line", {class: "grid", x1: left, x2: width - right, y1: y(part * most), y2: y(part * most)}));
    svg.append(draw("text", {x: left - 6, y: y(part * most) + 4, "text-anchor": "end"}, number.format(part * most)));
  }
  for (const [time, anchor] of [[oldest, "start"], [newest, "end"]]) svg.append(draw("text", {x: x(time), y: height - 5, "text-anchor": anchor}, clock(time)));
  ["here", "away"].forEach((name, place) => {
    const points = samples.map(one => `${x(one[0]).toFixed(1)} ${y(one[place + 1]).toFixed(1)}`);
    svg.append(draw("path", {class: "line " + name, d: "M" + points.join("L")}));
    svg.append(draw("circle", {class: "dot " + name, cx: x(newest), cy: y(last[place + 1]), r: 3}));
  });
  place.replaceChildren(svg);
}

// Messages a second, in and out, between each sample and the one before.
function rates(samples) {
  return samples.slice(1).map((one, at) => [one[0], ...[3, 4].map(place => Math.max(0, one[place] - samples[at][place]) / Math.max(0.1, one[0] - samples[at][0]))]);
}

// A bar for each span of a peer's history.
function sparkline(history, seconds) {
  if (!history.length) return [];
  const sum = history.reduce((one, other) => one + other), most = Math.max(1, ...history);
  const text = `${many(sum, "message")} in ${span(history.length * seconds)}, at most ${count(Math.max(...history))} in ${span(seconds)}`;
  return [draw("svg", {class: "spark", viewBox: `0 0 ${3 * history.length} 20`, role: "img", "aria-label": text}, draw("title", {}, text),
    ...history.map((value, at) => draw("rect", {x: 3 * at, width: 2, y: value ? 18 - 17 * value / most : 19, height: value ? 2 + 17 * value / most : 1})))];
}

// ---- the overview

function verdict(told) {
  const number = told.problem_count, more = number - told.problems.length;
  const texts = [...told.problems.map(short), ...(more ? [`and ${count(more)} more`] : [])];
  document.title = number ? `(${count(number)}) ordack` : "ordack";
  $("verdict").className = number ? "verdict bad" : "verdict good";
  $("verdict").replaceChildren(make("h2", {}, number ? many(number, "problem") : "No problems"), ...(number ? [make("ul", {}, ...texts.map(text => make("li", {}, text)))] : []));
}

function figures(told) {
  const last = told.samples[told.samples.length - 1], rate = rates(told.samples.slice(-7)), mean = place => rate.length ? rounded(rate.reduce((sum, one) => sum + one[place], 0) / rate.length) : "–";
  const rows = [
    ["Messages a second, in", mean(1)],
    ["Messages a second, out", mean(2)],
    ["Messages in local queues", last ? count(last[1]) : "–"],
    ["Messages in outgoing queues", last ? count(last[2]) : "–"],
    ["Connected peers", `${count(told.connected)} of ${count(told.peer_count)}`],
    ["Dead letters", count(told.dead_letters), told.dead_letters > 0],
    ["Free space", size(Math.max(0, told.room)), told.room < 5e6],
  ];
  $("figures").replaceChildren(...rows.map(([title, value, bad]) => make("div", {className: bad ? "bad" : ""}, make("dt", {}, title), make("dd", {}, value))));
}

// Change only the rows and cells that differ: a button that is pressed, or has the focus, stays.
function update(place, rows) {
  rows.forEach((row, at) => {
    const old = place.children[at];
    if (!old) place.append(row);
    else if (old.dataset.key !== row.dataset.key) old.replaceWith(row);
    else [...row.children].forEach((cell, number) => old.children[number].isEqualNode(cell) || old.children[number].replaceWith(cell));
  });
  while (place.children.length > rows.length) place.lastElementChild.remove();
}

const keyed = (key, element) => (element.dataset.key = key, element);

// What `press` does: sends the request, after the question, which is [title, text, answer] of this moment.
const button = (text, request, question) => make("button", {type: "button", request, question}, text);

function messagesIn(queue) {
  const found = [...told.queues, ...told.outgoing].find(one => (one.name ?? one.format_name) === queue);
  return found ? many(found.messages, "message") : "messages";
}

const showing = request => [request, () => [`Show the messages in ${request.queue}?`, "The messages stay in the queue. The page shows them with the token only.", "Show"]];
const purging = queue => [{action: "purge", queue}, () => [`Remove ${messagesIn(queue)} from ${queue}?`, "The messages are deleted, also those that arrive before you confirm. Senders that asked for it are told. You cannot undo this.", "Remove"]];
const pausing = queue => [{action: "pause", queue}, () => [`Pause the outgoing queue ${queue}?`, `In the queue: ${messagesIn(queue)}. They stay here until you resume the queue.`, "Pause"]];
const resuming = queue => [{action: "resume", queue}, () => [`Resume the outgoing queue ${queue}?`, `In the queue: ${messagesIn(queue)}. They are sent as soon as the peer is connected.`, "Resume"]];
const moving = (queue, {lookup_id: key, in_doubt, label, size, destination}) => [{action: "move", queue, key, in_doubt}, () => ["Move 1 message back?", `The message ${label && `“${short(label)}” `}of ${many(size, "byte")} leaves ${queue} and goes to ${destination}, as a new message.${in_doubt ? " An application may have received it before, and then receives it twice." : ""}`, "Move back"]];
const creating = (queue, transactional) => [{action: "create", queue, transactional}, () => [`Create the queue ${queue}?`, transactional ? "The queue takes transactional messages, which boards send." : "The queue takes messages that are not transactional. Boards cannot send to it.", "Create"]];

function waiting(told) {
  update($("waiting"), told.outgoing.slice(0, SHOWN).map(queue => keyed(queue.format_name, make("li", {},
    make("span", {className: "strong"}, short(queue.peer_name ?? queue.format_name)),
    make("span", {className: "number"}, `${many(queue.messages, "message")}, ${size(queue.bytes)}`),
    make("span", {className: "why"}, short(queue.why || "on hold"), ...(queue.peer_name ? [make("br"), make("span", {className: "name small"}, short(queue.format_name))] : [])),
    make("span", {className: "why actions"}, queue.on_hold ? button("Resume …", ...resuming(queue.format_name)) : button("Pause …", ...pausing(queue.format_name)))))));
  const more = told.outgoing_count - Math.min(told.outgoing.length, SHOWN);
  $("waiting-more").textContent = more > 0 ? `and ${count(more)} more outgoing queues` : told.outgoing_count ? "" : "No messages are waiting.";
}

function quota(queue) {
  if (queue.quota === null) return [];
  const part = queue.quota ? queue.bytes / queue.quota : 1;
  return [make("meter", {min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, value: Math.min(part, 1)}), ` ${Math.round(100 * part)} % of ${size(queue.quota)}`];
}

function queues(told) {
  const kind = queue => queue.system ? "system queue" : queue.transactional ? "transactional" : "not transactional";
  update(document.querySelector("#queues tbody"), told.queues.slice(0, SHOWN).map(queue => keyed(queue.name, make("tr", {},
    cell("", "", name(queue.name), " ", make("span", {className: "small"}, kind(queue))),
    cell("messages", "number", count(queue.messages) + (queue.receiving ? `, ${count(queue.receiving)} in receives` : "")),
    cell("size", "number", size(queue.bytes)),
    cell("quota", "", ...quota(queue)),
    cell("oldest", "number", queue.oldest === null ? "" : span(told.time - queue.oldest)),
    cell("", "actions", button("Messages", ...showing({action: "look", queue: queue.name})), button("Purge …", ...purging(queue.name)))))));
  const shown = Math.min(told.queues.length, SHOWN);
  $("queues-more").textContent = shown < told.queue_count ? `${count(shown)} of ${count(told.queue_count)}, the fullest first` : "";
}

function peers(told) {
  const row = (title, more, isOpen, state, heard, spark, address) => make("tr", {},
    cell("", "", make("span", {className: "strong"}, short(title)), " ", more),
    cell("", "", make("span", {className: "badge " + (isOpen ? "yes" : "")}, state)),
    cell("heard", "number", heard), cell("", "", ...spark), cell("", "", name(address)));
  const lines = told.serial.map(line => row(line.host, make("span", {className: "small"}, "serial line"), line.state === "Connected", line.state, "", [], line.serial));
  const rows = told.peers.slice(0, SHOWN).map(peer => row(peer.name ?? peer.via, make("span", {className: "name small"}, peer.guid), peer.sessions,
    peer.sessions > 1 ? `${peer.sessions} sessions` : peer.sessions ? "connected" : "disconnected", `${span(peer.silent_s)} ago`, sparkline(peer.history, told.span_s), peer.address));
  document.querySelector("#peers tbody").replaceChildren(...lines, ...rows);
  const more = told.found_count - rows.length;
  $("refusals").textContent = told.refused && "Refused since the start of `ordack serve`: " + told.refused;
  $("peers-more").textContent = more > 0 ? `and ${count(more)} more` : rows.length + lines.length ? "" : told.peer_count ? "No peer has this in its name." : "No peer has connected since the start of `ordack serve`.";
}

function show(told) {
  $("store").textContent = told.store;
  $("served").textContent = told.since ? `served since ${moment(told.since)} by process ${told.process}, listening on ${told.listening}` : "";
  verdict(told);
  figures(told);
  plot($("depth"), told.samples, (here, away) => `${here} here, ${away} to be sent`);
  plot($("rate"), rates(told.samples), (here, away) => `${here} in, ${away} out`);
  waiting(told);
  queues(told);
  peers(told);
}

// ---- actions: each needs the token, and each change is confirmed

let proposed = null, shown = null;  // the latest button, and the one whose messages are shown

function press({target}) {
  if (target.request) target.request.action === "look" && token ? carryOut(target) : propose(target);
}

function propose(button, error = "") {
  const [title, text, yes] = button.question();
  proposed = button;
  for (const [part, value] of Object.entries({title, text, yes, error})) $("ask-" + part).textContent = value;
  $("ask-locked").hidden = $("ask-token").disabled = Boolean(token);
  if (!$("ask").open) $("ask").showModal();
}

async function carryOut(button) {
  const {action} = button.request;
  $("ask-yes").disabled = true;
  try {
    const {done, ...page} = await act(button.request);
    $("ask").close();
    if (action === "look") return content(page, button);
    $("done").textContent = done;
    $("done").hidden = false;
    clearTimeout(doneTimer);
    doneTimer = setTimeout(() => $("done").hidden = true, DONE_MS);
    if (action === "create") $("create").reset();
    if (!$("content").hidden) carryOut(shown);
    look();
  } catch (error) {
    propose(button, short(error.message));
  } finally {
    $("ask-yes").disabled = false;
  }
}

async function act(request) {
  const headers = {"Content-Type": "application/json", Authorization: "Bearer " + token};
  const sent = fetch("act", {method: "POST", cache: "no-store", signal: AbortSignal.timeout?.(PATIENCE_MS), body: JSON.stringify(request), headers});
  const answer = await sent.catch(() => { throw new Error(NO_ANSWER + " The request may have been carried out: compare the figures before you repeat it."); });
  if (answer.status === 401) token = "";
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

function content({queue, messages, next}, pressed) {
  const isKept = /^system\$;(deadletter|deadxact|journal)$|;poison$/.test(queue), first = {action: "look", queue};
  shown = pressed;
  $("content").hidden = false;
  $("content-name").textContent = queue;
  $("messages").replaceChildren(...messages.map(message => make("li", {},
    make("span", {}, make("span", {className: "strong"}, short(message.label) || "(no label)"), " ", make("span", {className: "small"}, `from ${message.source}`)),
    make("span", {className: "number small"}, `${moment(message.arrived)}, ${many(message.size, "byte")}`),
    ...(message.why ? [make("span", {className: "why"}, `To ${message.destination}: ${message.why}${message.in_doubt ? ", in doubt" : ""}`)] : []),
    make("pre", {}, message.body + (message.is_cut ? "…" : "")),
    ...(isKept ? [make("span", {className: "why actions"}, button("Move back …", ...moving(queue, message)))] : []))));
  $("content-more").textContent = messages.length ? "" : "No messages.";
  $("pages").replaceChildren(
    ...(shown.request.rank === undefined ? [] : [button("First messages", ...showing(first))]),
    ...(next ? [button("Next messages", ...showing({...first, rank: next[0], lookup_id: next[1]}))] : []));
  $("content").scrollIntoView({block: "nearest"});
}

// ---- polling

let told = null, asked = 0, timer = 0, came = 0, isGone = false, goneSince = 0, doneTimer = 0, token = "";

async function look() {
  clearTimeout(timer);
  const mine = ++asked;
  try {
    const find = new URLSearchParams([["queues", $("search").value], ["peers", $("search-peers").value]].filter(([, text]) => text)).toString();
    const answer = await fetch("overview" + (find && "?" + find), {cache: "no-store", signal: AbortSignal.timeout?.(PATIENCE_MS), headers: token ? {Authorization: "Bearer " + token} : {}});
    $("unlock").hidden = answer.status !== 401;
    if (!answer.ok) throw new Error((await answer.text()).trim());
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
    const why = error instanceof TypeError || error.name === "TimeoutError" ? NO_ANSWER : short(error.message);
    $("verdict").replaceChildren(make("h2", {}, `No answer since ${clock(goneSince)}`), make("p", {}, why), ...(told ? [make("p", {}, `The figures below are from ${clock(told.time)}.`)] : []));
  }
  age();
  if (!document.hidden && $("unlock").hidden) timer = setTimeout(look, EVERY_MS);
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
for (const id of ["search", "search-peers"]) $(id).addEventListener("input", look);
document.addEventListener("click", press);
$("ask-no").addEventListener("click", () => $("ask").close());
$("close").addEventListener("click", () => $("content").hidden = true);
$("ask-form").addEventListener("submit", event => {
  event.preventDefault();
  token = token || $("ask-token").value.trim();
  $("ask-token").value = "";
  carryOut(proposed);
});
$("create").addEventListener("submit", event => {
  event.preventDefault();
  const [request, question] = creating($("create-name").value.trim(), $("create-transactional").checked);
  propose({request, question});
});
$("unlock").addEventListener("submit", event => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  look();
});
look();
