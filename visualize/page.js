// What is chosen, and what the views show of it.

const id = (name) => document.getElementById(name);
const { graphs, programs } = JSON.parse(id("structure").textContent);
const VIEWS = ["drawing", "code", "changes", "compiled", "python", "axes", "buckets", "calls"].filter((view) => id(`tab-${view}`));
const SEARCHED = ["drawing", "code", "changes", "compiled", "python"];
const KINDS = { compiled: "compiled", boundary: "runs as it is", trivial: "nothing to compile" };

/** The texts and drawings, which the file holds compressed. */
async function unpack() {
  const bytes = Uint8Array.from(atob(id("payload").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// --- the choice

const state = { graph: 0, bucket: 0, step: "", piece: "", view: "drawing" };
let payload = { texts: [], drawings: [] };
let hits = [], hit = -1;

const graph = () => graphs[state.graph];
const bucket = () => graph().buckets[state.bucket];
/** A bucket that is not compiled has no steps of its own: it shows how far it came. */
const steps = () => (bucket().steps.length ? bucket().steps : graph().buckets[0].steps);
const step = () => steps()[stepNumber()];
const program = () => programs[step().program];
const piece = () => program().pieces.find((one) => one.name === state.piece);
const text = (number) => (number < 0 ? "" : payload.texts[number]);

function stepNumber() {
  const found = steps().findIndex((one) => one.name === state.step);
  return found >= 0 ? found : steps().length - 1;
}

function change(what) {
  Object.assign(state, what);
  // A bucket is looked at where its steps have come to.
  if ("bucket" in what) state.step = steps().at(-1).name;
  if (!piece()) state.piece = "";
  remember();
  render();
}

function remember() {
  const words = { graph: state.graph, bucket: bucket().label, step: step().name, piece: state.piece, view: state.view };
  try { history.replaceState(null, "", `#${new URLSearchParams(words)}`); } catch { /* A page in a frame has no history. */ }
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = Number(words.get("graph") ?? 0);
  state.graph = graphs[number] ? number : 0;
  state.bucket = Math.max(graph().buckets.findIndex((one) => one.label === words.get("bucket")), 0);
  state.step = words.get("step") ?? "";
  state.piece = words.get("piece") ?? "";
  if (VIEWS.includes(words.get("view"))) state.view = words.get("view");
  if (!piece()) state.piece = "";
}

// --- lists

function seconds(value) {
  if (value >= 1) return `${value.toPrecision(3)} s`;
  return value >= 0.001 ? `${(value * 1000).toPrecision(3)} ms` : `${(value * 1e6).toFixed(0)} µs`;
}

function counted(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

/** Return an item of a list: its name, and what is said of it. */
function radio(title, notes, kind = "") {
  const item = make("button", { type: "button", role: "radio", class: kind }, make("span", { class: "name" }, title));
  for (const note of notes.filter(Boolean)) item.append(make("span", { class: "note" }, note));
  return item;
}

function renderLists() {
  id("graphs-list").hidden = graphs.length < 2;
  fill(id("graphs"), graphs.map((one) => radio(one.title, [one.refusal ? "runs as it is" : counted(one.buckets.length - 1, "bucket")])), state.graph);
  fill(id("buckets"), graph().buckets.map((one) => radio(one.label, [one.state], `state-${one.state.replaceAll(" ", "-")}`)), state.bucket);
  const pieces = program().pieces;
  const items = pieces.map((one) => {
    const item = radio(one.name, [`${KINDS[one.kind]} · ${counted(one.nodes, "node")}`], `kind-${one.kind}`);
    item.title = one.reason;
    return item;
  });
  const whole = radio("whole program", [pieces.length ? counted(pieces.length, "piece") : "not split"], "kind-whole");
  fill(id("pieces"), [whole, ...items], pieces.findIndex((one) => one.name === state.piece) + 1);
}

function renderSteps() {
  const items = steps().map((one) => {
    const pieces = programs[one.program].pieces.length;
    const start = pieces ? counted(pieces, "piece") : "one graph";
    const said = [one.seconds === null ? start : seconds(one.seconds), one.changes >= 0 ? "changed" : ""];
    const item = radio(one.name, [said.filter(Boolean).join(" · ")]);
    if (one.findings.length) item.lastChild.append(" · ", make("strong", {}, counted(one.findings.length, "finding")));
    return item;
  });
  fill(id("steps"), items, stepNumber());
  const note = id("step-note");
  note.replaceChildren();
  if (step().arguments) note.append(make("code", {}, step().arguments));
  if (step().findings.length) note.append(make("ul", {}, ...step().findings.map((finding) => make("li", {}, finding))));
  const banner = id("bucket-note");
  const without = !bucket().steps.length;
  banner.hidden = !without && !bucket().note;
  const why = { refused: "refused", waiting: "not compiled yet" }[bucket().state] ?? bucket().state;
  banner.textContent = `${bucket().label}: ${why}${bucket().note ? `. ${bucket().note}` : ""}${without ? " Shown is the program for all sizes." : ""}`;
}

// --- views

const LEXICON = /(#.*$|\/\/.*$)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(def|return|if|elif|else|for|in|while|with|as|import|from|class|not|and|or|is|None|True|False|del|lambda|pass|const|auto|void|where|boundary|compiled)\b/gm;

/** Return lines as elements, with words, texts and remarks of code marked; `isCode` tells what is code. */
function codeLines(source, isCode) {
  return source.replace(/\n$/, "").split("\n").map((line) => {
    const made = make("span", { class: isCode(line) || /^\s|^$/.test(line) ? "line" : "line head" });
    let at = 0;
    for (const found of isCode(line) ? line.matchAll(LEXICON) : []) {
      if (found.index > at) made.append(line.slice(at, found.index));
      made.append(make("span", { class: found[1] ? "remark" : found[2] ? "quoted" : "word" }, found[0]));
      at = found.index + found[0].length;
    }
    made.append(`${line.slice(at)}\n`);
    return made;
  });
}

const isFx = (line) => line.startsWith("    ");

function codeBlock(label, source, missing, isCode = () => true) {
  if (!source) return make("p", { class: "nothing" }, missing);
  const block = make("pre", { class: "code", tabindex: "0", role: "region", "aria-label": label });
  block.append(...codeLines(source, isCode));
  return block;
}

const where = () => `${state.piece || "the whole program"}, ${bucket().label}, after ${step().name}`;

function renderDrawing() {
  const shown = piece() ?? program();
  const found = payload.drawings[shown.drawing];
  id("canvas").setAttribute("aria-label", `Drawing of ${where()}`);
  id("detail").hidden = true;
  if (found) drawing.show(shown.drawing, () => found);
  else drawing.clear("There is no drawing of it.");
  const other = piece() && found && piece().drawn_for !== piece().name ? piece().drawn_for : "";
  id("drawn-for").textContent = other && `drawn for ${other}, equal to ${piece().name} up to names`;
}

function renderCode() {
  id("panel-code").replaceChildren(codeBlock(`FX code of ${where()}`, text((piece() ?? program()).code), "There is no code.", isFx));
}

function renderChanges() {
  const missing = stepNumber() === 0 ? "Nothing ran before: this is where the program starts." : `${step().name} changes no node: the graph is that of the step before.`;
  id("panel-changes").replaceChildren(codeBlock(`What ${step().name} changed`, text(step().changes), missing, () => false));
}

function renderCompiled() {
  const artifacts = bucket().artifacts, panel = id("panel-compiled");
  if (!Object.keys(artifacts).length) {
    panel.replaceChildren(make("p", { class: "nothing" }, `Nothing is compiled for ${bucket().label}${state.bucket === 0 ? "; choose a bucket." : "."}`));
  } else if (state.piece) {
    const found = artifacts[state.piece];
    const missing = !found || found.origin === "as it is" ? `${state.piece} runs as it is: no code is generated for it.` : `The compiler kept no code of ${state.piece} (${found.origin}).`;
    panel.replaceChildren(codeBlock(`Code that the compiler generated for ${state.piece}, ${bucket().label}`, found ? text(found.code) : "", missing));
  } else {
    const rows = Object.entries(artifacts).map(([name, one]) => {
      const open = make("button", { type: "button", class: "open" }, name);
      open.addEventListener("click", () => { change({ piece: name }); id("tab-compiled").focus(); });
      const lines = one.code < 0 ? "–" : text(one.code).split("\n").length.toLocaleString("en");
      return make("tr", {}, make("th", { scope: "row" }, open), make("td", {}, one.origin), make("td", { class: "number" }, lines));
    });
    const head = make("tr", {}, ...["piece", "origin", "lines of code"].map((name) => make("th", { scope: "col" }, name)));
    panel.replaceChildren(make("div", { class: "scroll tables" }, make("table", {}, make("caption", {}, `Artifacts for ${bucket().label}: choose a piece to read its code`), make("thead", {}, head), make("tbody", {}, ...rows))));
  }
}

function renderPython() {
  const own = text(bucket().function), look = text(graph().dispatch);
  const parts = [look && `# The look-up in front of all buckets\n${look.trimEnd()}`, own && `# What runs a call of ${bucket().label}\n${own.trimEnd()}`];
  const missing = graph().refusal ? "The graph runs as it is: no Python is generated." : "No Python is generated.";
  id("panel-python").replaceChildren(codeBlock(`Generated Python, ${bucket().label}`, parts.filter(Boolean).join("\n\n\n"), missing));
}

const RENDER = { drawing: renderDrawing, code: renderCode, changes: renderChanges, compiled: renderCompiled, python: renderPython };

function render() {
  renderLists();
  renderSteps();
  renderView();
}

function renderView() {
  mark(id("views"), "tab", "aria-selected", VIEWS.indexOf(state.view));
  for (const view of VIEWS) id(`panel-${view}`).hidden = view !== state.view;
  for (const part of document.querySelectorAll("[data-graph]")) part.hidden = Number(part.dataset.graph) !== state.graph;
  id("search-form").classList.toggle("idle", !SEARCHED.includes(state.view));
  RENDER[state.view]?.();
  search(false);
}

// --- search

/** Find what holds all words, in the drawing or among the lines of the code. */
function search(go = true) {
  const words = id("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const isDrawing = state.view === "drawing";
  const lines = isDrawing ? [] : [...id(`panel-${state.view}`).querySelectorAll(".line")];
  hit = -1;
  if (isDrawing) {
    hits = drawing.find(words);
  } else {
    hits = words.length ? lines.filter((line) => words.every((word) => line.textContent.toLowerCase().includes(word))) : [];
    lines.forEach((line) => line.classList.remove("hit", "chosen"));
    hits.forEach((line) => line.classList.add("hit"));
  }
  id("previous").disabled = id("next").disabled = !hits.length;
  id("search").classList.toggle("missed", words.length > 0 && !hits.length && SEARCHED.includes(state.view));
  id("hits").textContent = !words.length || !SEARCHED.includes(state.view) ? "" : hits.length ? counted(hits.length, "hit") : "Not found in this view.";
  if (go && hits.length) move(1);
}

function move(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  const part = hits[hit];
  let name = "";
  if (state.view === "drawing") {
    drawing.choose(part);
    const [code, value] = part.querySelector("title")?.textContent.split("\n") ?? [""];
    name = part.matches(".node") ? [code.split(" = ")[0], value].filter(Boolean).join(", ") : code;
  } else {
    hits.forEach((line) => line.classList.toggle("chosen", line === part));
    part.scrollIntoView({ block: "center", inline: "nearest" });
    name = part.textContent.trim();
  }
  id("hits").textContent = `${hit + 1} of ${hits.length}: ${name}`;
}

/** Say all about a node beside the drawing. */
function explain(part) {
  const detail = id("detail"), words = part?.querySelector("title")?.textContent ?? "";
  detail.hidden = !words;
  if (!words) return;
  const shown = make("pre", {}, words);
  const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  close.addEventListener("click", () => { drawing.choose(null); id("canvas").focus(); });
  detail.replaceChildren(close, shown);
  const frame = part?.matches(".cluster-text") ? [...drawing.svg.querySelectorAll("g.cluster")].find((one) => one.querySelector("title")?.textContent === words) : part;
  const name = frame?.dataset.key?.replace(/^cluster\./, "");
  if (frame?.matches(".cluster") && !state.piece && program().pieces.some((one) => one.name === name)) {
    const open = make("button", { type: "button" }, `Open ${name}`);
    open.addEventListener("click", () => { change({ piece: name }); id("canvas").focus(); });
    detail.append(open);
  }
  if (part?.dataset.url) detail.append(make("a", { href: part.dataset.url, target: "_blank", rel: "noreferrer" }, "Open the source file"));
}

// --- theme, keys, start

const preferred = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (preferred.matches ? "dark" : "light")) === "dark";

function showTheme() {
  id("theme").setAttribute("aria-checked", String(isDark()));
}

function switchTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
}

function choose(view) {
  change({ view });
}

const drawing = new Drawing(id("canvas"), id("zoom-level"), explain);

rove(id("graphs"), "radio", (index) => change({ graph: index, bucket: 0 }));
rove(id("buckets"), "radio", (index) => change({ bucket: index }));
rove(id("steps"), "radio", (index) => change({ step: steps()[index].name }));
rove(id("pieces"), "radio", (index) => change({ piece: index ? program().pieces[index - 1].name : "" }));
rove(id("views"), "tab", (index) => choose(VIEWS[index]));

id("search").addEventListener("input", () => search());
id("search").addEventListener("keydown", (event) => {
  if (event.key === "Escape") { id("search").value = ""; search(); drawing.choose(null); }
});
id("search-form").addEventListener("submit", (event) => event.preventDefault());
id("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); move(event.shiftKey ? -1 : 1); }
});
id("next").addEventListener("click", () => move(1));
id("previous").addEventListener("click", () => move(-1));
id("zoom-in").addEventListener("click", () => drawing.zoom(1.25));
id("zoom-out").addEventListener("click", () => drawing.zoom(0.8));
id("zoom-all").addEventListener("click", () => drawing.all());
id("zoom-one").addEventListener("click", () => drawing.zoom(1 / drawing.view.scale));
id("theme").addEventListener("click", switchTheme);
id("keys").addEventListener("click", () => id("help").showModal());
preferred.addEventListener("change", showTheme);
window.addEventListener("hashchange", () => { recall(); render(); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input") || id("help").open) return;
  const act = {
    "/": () => { if (!SEARCHED.includes(state.view)) choose("drawing"); id("search").focus(); id("search").select(); },
    "?": () => id("help").showModal(),
    t: switchTheme,
    g: () => choose("drawing"),
    c: () => choose("code"),
  }[event.key];
  if (act && (graphs.length || event.key === "?" || event.key === "t")) { event.preventDefault(); act(); }
});

showTheme();
if (graphs.length) {
  recall();
  try {
    payload = await unpack();
  } catch (error) {
    id("main").prepend(make("p", { class: "banner" }, `Drawings and code cannot be unpacked (${error}); the tables are here.`));
  }
  render();
} else {
  document.body.classList.add("empty");
}
document.documentElement.dataset.ready = "yes";
