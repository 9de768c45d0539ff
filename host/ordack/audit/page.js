// Tables and plots of an audit's report, behind sheet.js.

// ---- what there is

const streams = unpack(data.streams), senders = unpack(data.senders), connections = unpack(data.connections);
for (const stream of streams) stream.queue = data.queues[stream.queue];
for (const one of [...streams, ...senders]) one.source = data.managers[one.source];
const series = new Map(data.series.map(one => [one.stream, one]));
const BADGES = ["violation", "not known", "unsettled", "clean"];
const badge = stream => make("span", {className: "badge b" + stream.verdict}, BADGES[stream.verdict]);
const streamLink = stream =>
  make("button", {type: "button", className: "name link", title: "Show " + stream.queue, onclick: () => choose(stream.index, true)}, stream.queue);
const label = stream => `${stream.source} → ${stream.queue}` + (stream.hops ? ` (${stream.hops} hops)` : "");

// ---- violations

function packets(finding) {
  return make("ol", {className: "packets"}, ...finding.packets.map(([file, frame, time]) =>
    make("li", {}, make("span", {className: "name", title: data.paths[file] ?? ""}, (data.paths[file] ?? "?").split("/").pop()), ` frame ${frame}, `, make("span", {className: "nowrap"}, time))));
}

function findings(place, caption, rows, total) {
  const about = finding => finding.stream === null ? finding.connection : label(streams[finding.stream]);
  const show = finding => finding.stream === null ? name(about(finding)) :
    make("span", {}, short(streams[finding.stream].source), " → ", streamLink(streams[finding.stream]));
  table($(place), caption, rows, [
    {title: "Kind", value: finding => finding.kind, show: (finding, kind) => make("strong", {title: data.kinds[kind] ?? ""}, kind)},
    {title: "Stream or connection", value: about, show},
    {title: "Sequence", value: finding => finding.sequence, show: (_, text) => name(text)},
    {title: "Number", value: finding => finding.number || null, show: (_, value) => value === null ? "" : count(value), number: true},
    {title: "What", className: "what", value: finding => finding.text, show: finding => make("span", {}, finding.text, finding.rule ? ` (${finding.rule})` : "")},
    {title: "Packets", value: finding => finding.packets.length, show: packets},
  ], {search: finding => about(finding) + finding.kind + finding.text,
      filters: [{title: "all kinds"}, ...[...new Set(rows.map(one => one.kind))].map(kind => ({title: kind, test: one => one.kind === kind}))],
      note: rows.length < total ? `The first ${count(rows.length)} of ${count(total)}.` : ""});
}

findings("violations-table", "Violations", data.violations, data.violation_count);
findings("unknowns-table", "Not known", data.unknowns, data.unknown_count);

// ---- the fleet

const fleet = table($("fleet-table"), "Streams", streams, [
  {title: "Verdict", value: stream => stream.verdict, show: badge},
  {title: "Source", value: stream => stream.source, show: (_, text) => short(text)},
  {title: "Destination queue", value: stream => stream.queue, show: streamLink},
  ...[["Violations", "violations"], ["Not known", "unknowns"], ["Messages", "messages"], ["Unsettled", "unsettled"], ["Resends", "resends"],
      ["Not accepted", "rejects"], ["Holes", "holes"]].map(([title, key]) => ({title, value: stream => stream[key], number: true})),
  ...[["Order p50 ms", "order_p50"], ["Order p99 ms", "order_p99"], ["Final p99 ms", "final_p99"]].map(([title, key]) =>
    ({title, value: stream => stream[key], show: (_, value) => milliseconds(value), number: true})),
], {search: label, filters: [
  {title: "all"}, {title: "with violations", test: stream => stream.violations}, {title: "with something not known", test: stream => stream.unknowns},
  {title: "with unsettled messages", test: stream => stream.unsettled}, {title: "with resends", test: stream => stream.resends},
]});

// ---- one stream

const MARKS = [
  ["first transmission", "first", "circle", 5], ["resend", "resend", "x-thin-open", 9], ["not accepted", "refused", "triangle-down-open", 9],
  ["order acknowledgement", "order", "line-ew", 0], ["final acknowledgement", "final", "diamond", 5], ["rejected", "negative", "square-x-open", 9],
];

function choose(index, scroll) {
  const stream = streams[index];
  for (const one of streams) one.chosen = one === stream;
  fleet.draw();
  if (![...$("choice").options].some(option => Number(option.value) === index))
    $("choice").append(make("option", {value: index}, label(stream)));
  $("choice").value = index;
  const fact = (title, value) => [make("dt", {}, title), make("dd", {}, value)];
  const latency = which => stream[which + "_p50"] === null ? "none seen" :
    `p50 ${milliseconds(stream[which + "_p50"])}, p90 ${milliseconds(stream[which + "_p90"])}, p99 ${milliseconds(stream[which + "_p99"])}, greatest ${milliseconds(stream[which + "_max"])} ms`;
  $("stream-facts").replaceChildren(make("dl", {className: "facts"},
    ...fact("Source", name(stream.source)), ...fact("Destination queue", name(stream.queue)),
    ...(stream.hops ? fact("Hop count", stream.hops) : []),
    ...fact("Verdict", badge(stream)), ...fact("Messages", `${count(stream.messages)}: ${count(stream.order_acked)} with an order acknowledgement, ${count(stream.final_acked)} with a final one, ${count(stream.unsettled)} unsettled`),
    ...fact("Sent again", `${count(stream.resends)} times; ${count(stream.rejects)} transmissions not accepted`),
    ...fact("Connections", count(stream.connections)), ...fact("Time", `${moment(stream.first)} to ${moment(stream.last)} UTC`),
    ...fact("To session acknowledgement", latency("session")), ...fact("To order acknowledgement", latency("order")),
    ...fact("To final acknowledgement", latency("final"))));
  const points = series.get(index);
  if (points) drawStream(stream, points);
  else {
    Plotly.purge($("stream-plot"));
    $("stream-plot").replaceChildren(make("p", {className: "quiet"}, data.series.length ?
      `Points are kept for the ${count(data.series.length)} streams with most trouble; this is none of them.` :
      "No points were kept for plots of streams."));
  }
  table($("sequences-table"), "Sequences", points ? points.sequences : [], [
    {title: "Sequence", value: one => one.sequence, show: (_, text) => name(text)},
    ...[["Messages", "messages"], ["Sent first", "first"], ["Resends", "resends"], ["Highest number", "highest"], ["Acknowledged to", "acknowledged"], ["Unsettled", "unsettled"]]
      .map(([title, key]) => ({title, value: one => one[key], number: true})),
  ]);
  if (scroll) $("stream").scrollIntoView();
}

function drawStream(stream, points) {
  const time = at => points.time + at;
  const numberAt = (at, position) => {
    let found = points.boundaries[0];
    for (const boundary of points.boundaries) if (boundary.base < position) found = boundary;
    return found ? `${count(position - found.base)} of sequence ${plain(found.sequence)}` : count(position);
  };
  const traces = () => {
    const made = MARKS.map(([title, key, symbol, size], what) => {
      const mine = [...points.what.keys()].filter(at => points.what[at] === what);
      const trace = {name: title, type: "scatter", x: mine.map(at => time(points.at[at])), y: mine.map(at => points.position[at]),
        text: mine.map(at => numberAt(at, points.position[at])), hovertemplate: `${title}<br>number %{text}<br>%{x|%H:%M:%S.%L}<extra></extra>`};
      return what === 3 ? {...trace, mode: "lines+markers", line: {shape: "hv", color: colour(key), width: 1.5}, marker: {size: 3, color: colour(key)}}
        : {...trace, mode: "markers", marker: {symbol, size, color: colour(key), line: {width: 1.5, color: colour(key)}}};
    });
    const bases = new Map(points.boundaries.map(one => [one.sequence, one.base]));
    const found = data.violations.filter(one => one.stream === stream.index && one.number && one.packets.length);
    made.push({name: "violation", type: "scatter", mode: "markers", marker: {symbol: "circle-open", size: 17, color: colour("bad"), line: {width: 3, color: colour("bad")}},
      x: found.map(one => one.at), y: found.map(one => one.number + (bases.get(one.sequence) ?? 0)), text: found.map(one => plain(one.kind)),
      hovertemplate: "<b>%{text}</b><br>%{x|%H:%M:%S.%L}<extra></extra>"});
    return made.filter(trace => trace.x.length);
  };
  $("stream-plot").replaceChildren();
  plot("stream-plot", `Numbers of the messages of ${label(stream)} over time, with resends and acknowledgements`, traces, () => ({
    xaxis: {type: "date", title: {text: "time (UTC)"}}, yaxis: {title: {text: "number of the message"}, rangemode: "tozero"},
    shapes: points.boundaries.slice(1).map(one => ({type: "line", x0: one.at, x1: one.at, yref: "paper", y0: 0, y1: 1, line: {dash: "dot", width: 1, color: colour("quiet")}})),
    annotations: points.boundaries.slice(1).map(one => ({x: one.at, yref: "paper", y: 1, yanchor: "top", xanchor: "left", showarrow: false, text: "new sequence", font: {size: 11, color: colour("quiet")}})),
  }), () => 460);
}

$("choice").append(...data.series.map(one => make("option", {value: one.stream}, label(streams[one.stream]))));
$("choice").onchange = () => choose(Number($("choice").value), false);
if (streams.length) choose(data.series.length ? data.series[0].stream : 0, false);

// ---- latency

const LATENCIES = [["session", "first"], ["order", "order"], ["final", "negative"]];
plot("latency-plot", "How many messages waited how long for an acknowledgement; the table below has the percentiles", () => LATENCIES
  .filter(([which]) => data.histograms[which] && data.histograms[which].length).map(([which, key]) => {
    const bins = data.histograms[which], total = bins.reduce((sum, bin) => sum + bin[1], 0);
    const x = [bins[0][0] / 1.1], y = [0];
    for (const [bound, amount] of bins) { x.push(bound); y.push(100 * amount / total); }
    return {name: which, type: "scatter", mode: "lines", x, y, fill: "tozeroy", line: {shape: "vh", width: 2, color: colour(key)}, customdata: [0, ...bins.map(bin => bin[1])],
      hovertemplate: `${which}: up to %{x:.3g} ms<br>%{customdata:,} messages, %{y:.1f} %<extra></extra>`};
  }), () => ({xaxis: {type: "log", title: {text: "milliseconds"}}, yaxis: {title: {text: "share of messages, %"}, rangemode: "tozero"}}), () => 360);

table($("senders-table"), "Senders", senders, [
  {title: "Source", value: sender => sender.source, show: (_, text) => name(text)},
  ...[["Streams", "streams"], ["Messages", "messages"], ["Resends", "resends"], ["Not accepted", "rejects"], ["Unsettled", "unsettled"], ["Violations", "violations"]]
    .map(([title, key]) => ({title, value: sender => sender[key], number: true})),
  ...["session", "order", "final"].flatMap(which => ["p50", "p99", "max"].map(rank => (
    {title: `${which} ${rank} ms`, value: sender => sender[`${which}_${rank}`], show: (_, value) => milliseconds(value), number: true}))),
], {search: sender => sender.source});

// ---- outcomes

plot("outcomes-plot", "Messages by outcome; the table below has the numbers", () => [{
  type: "bar", orientation: "h", x: data.outcomes.map(one => one[1]), y: data.outcomes.map(one => plain(one[0])),
  marker: {color: data.outcomes.map(one => colour(one[2]))}, text: data.outcomes.map(one => count(one[1])), textposition: "auto", hoverinfo: "y+text",
}], () => ({xaxis: {title: {text: "messages"}}, yaxis: {autorange: "reversed", type: "category"}, showlegend: false}), () => 110 + 30 * data.outcomes.length);

// ---- connections

const EVENTS = {hole: ["hole", "x-thin-open", "negative"], malformed: ["malformed packet", "hexagram-open", "negative"], violation: ["violation", "circle-open", "bad"],
  established: ["session opened", "triangle-up-open", "order"], first_message: ["first message", "circle", "first"]};
const connectionLabel = connection => plain(`${connection.ends[0]} → ${connection.ends[1]}`);

function timelines(page) {
  $("connections-plot").hidden = !page.length;
  if (!page.length) return;
  const rows = page.map((connection, at) => `${at + 1}  ${connectionLabel(connection)}`);
  plot("connections-plot", "When the connections of the table below stood", () => {
    const bar = (title, key, test) => {
      const mine = [...page.keys()].filter(at => test(page[at]));
      return {name: title, type: "bar", orientation: "h", base: mine.map(at => page[at].first), x: mine.map(at => Math.max(page[at].last - page[at].first, 1)), y: mine.map(at => rows[at]),
        width: .62, marker: {color: colour(key), opacity: .55}, text: mine.map(at => plain(`${count(page[at].messages)} messages; ended: ${page[at].end}`)), textposition: "none",
        hovertemplate: "%{y}<br>%{text}<extra></extra>"};
    };
    const made = [bar("whole", "first", one => one.whole), bar("with holes or without its beginning", "resend", one => !one.whole)];
    for (const what in EVENTS) {
      const [title, symbol, key] = EVENTS[what], x = [], y = [], text = [];
      page.forEach((connection, at) => connection.events.forEach(event => {
        if (event[1] === what) { x.push(event[0]); y.push(rows[at]); text.push(plain(event[2])); }
      }));
      made.push({name: title, type: "scatter", mode: "markers", x, y, text, marker: {symbol, size: 9, color: colour(key), line: {width: 2, color: colour(key)}}, hovertemplate: `${title}<br>%{x|%H:%M:%S.%L}<br>%{text}<extra></extra>`});
    }
    return made.filter(trace => trace.y.length);
  }, () => ({xaxis: {type: "date", title: {text: "time (UTC)"}}, yaxis: {type: "category", categoryorder: "array", categoryarray: rows, range: [rows.length - .5, -.5], tickfont: {size: 11}}, barmode: "overlay"}),
  () => 130 + 22 * page.length);
}

table($("connections-table"), "Connections", connections, [
  {title: "From", value: one => one.ends[0], show: (_, text) => name(text)}, {title: "To", value: one => one.ends[1], show: (_, text) => name(text)},
  {title: "Begin", value: one => one.first, show: (one, value) => moment(value) + (one.syn ? "" : " (older)"), className: "nowrap"},
  {title: "Seconds", value: one => one.last - one.first, show: (_, value) => number.format(value / 1000), number: true},
  ...[["Packets", "packets"], ["Messages", "messages"], ["Holes", "holes"], ["Malformed", "malformed"]].map(([title, key]) => ({title, value: one => one[key], number: true})),
  {title: "End", value: one => one.end},
], {search: one => one.ends.join(" ") + " " + one.managers.join(" "), shown: timelines,
    filters: [{title: "all"}, {title: "with holes", test: one => one.holes}, {title: "older than the capture", test: one => !one.syn}, {title: "with malformed packets", test: one => one.malformed}],
    note: connections.length < data.connection_count ? `Those with most trouble of ${count(data.connection_count)}.` : ""});
