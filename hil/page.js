// Plots of campaigns, behind sheet.js. A board has `readings` (seconds, accepted, acknowledged, in the queue) and `faults`.

const chosen = $("board"), PARTS = 50, COLOURS = {link: "resend", board: "negative", "queue manager": "refused", "name server": "doubt", "access point": "quiet"};
const SYMBOLS = {link: "line-ns-open", board: "x", "queue manager": "diamond", "name server": "triangle-up", "access point": "star"};
chosen.append(...data.map((one, index) => make("option", {value: index}, one.board)));
const board = () => data[chosen.value] ?? {board: "", readings: [], faults: []};
const kinds = () => Object.keys(COLOURS).map(kind => [kind, board().faults.filter(fault => fault[1].startsWith(kind + ": "))]);
const end = () => Math.max(...board().readings.slice(-1).map(one => one[0]), ...board().faults.slice(-1).map(one => one[0]), 0.1);
const seconds = {title: {text: "seconds"}, rangemode: "tozero"};

function acknowledged(at) {
  let found = 0;
  for (const reading of board().readings) if (reading[0] <= at) found = reading[2];
  return found;
}

function marks(height) {
  return kinds().map(([kind, faults]) => ({
    type: "scatter", mode: "markers", name: kind, x: faults.map(one => one[0]), y: faults.map(one => height(one)), text: faults.map(one => plain(one[1])),
    marker: {color: colour(COLOURS[kind]), size: 9, symbol: SYMBOLS[kind], line: {width: 2, color: colour(COLOURS[kind])}},
    hovertemplate: "%{text}, %{x:.2f} s: %{y:.3~f}<extra></extra>",
  }));
}

function draw() {
  plot("time-plot", "Readings accepted and acknowledged over time, with the faults", () => [
    ...[["accepted", 1, "first"], ["acknowledged", 2, "order"]].map(([name, at, key]) => ({
      type: "scatter", mode: "lines", name, x: board().readings.map(one => one[0]), y: board().readings.map(one => one[at]), line: {shape: "hv", color: colour(key)}})),
    ...marks(one => acknowledged(one[0])),
  ], () => ({xaxis: seconds, yaxis: {title: {text: "readings"}, rangemode: "tozero"}}));
  plot("rate-plot", "Acknowledged readings a second over time, with the faults", () => {
    const width = end() / PARTS, counts = Array.from({length: PARTS}, (_, part) => acknowledged((part + 1) * width) - (part ? acknowledged(part * width) : 0));
    const rates = counts.map(value => value / width), during = at => rates[Math.min(PARTS - 1, Math.floor(at / width))];
    return [{type: "bar", name: "acknowledged", x: counts.map((_, part) => (part + 0.5) * width), y: rates, marker: {color: colour("order")},
             hovertemplate: "%{x:.2f} s: %{y:.1f} a second<extra></extra>"}, ...marks(one => during(one[0]))];
  }, () => ({xaxis: seconds, yaxis: {title: {text: "readings a second"}, rangemode: "tozero"}}), () => 320);
  plot("recovery-plot", "Seconds until a reading was acknowledged after each fault", () => marks(one => one[2]),
    () => ({xaxis: seconds, yaxis: {title: {text: "seconds"}, rangemode: "tozero"}}), () => 320);
}
chosen.addEventListener("change", draw);
draw();
