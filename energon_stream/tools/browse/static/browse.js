// The page of energon-stream browse. What comes from a dataset becomes text of elements, and never markup.
"use strict";

const byId = (id) => document.getElementById(id);
const RUN_LABELS = {
  step: "step", batch_size: "batch size", rank: "rank", world_size: "ranks", num_workers: "workers",
  num_streams: "streams", seed_offset: "seed",
};
let catalog = null;
let asked = 0; // answers of earlier questions are dropped

/** Makes an element; children are elements or texts. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

async function ask(path, query = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

const state = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** Goes to another view; empty values are left out. */
function go(changes) {
  const kept = Object.entries(changes).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  location.hash = new URLSearchParams(kept);
}

function say(text, isProblem = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("problem", isProblem);
}

const bytes = (size) => {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000 || unit === "GB") return `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
};

const address = (sample, part, more = {}) =>
  new URLSearchParams({ source: sample.source, number: sample.number, part, ...more });

function picture(sample, part, side) {
  const image = make("img", { alt: "", loading: side > 256 ? "eager" : "lazy" });
  const source = `picture?${address(sample, part, { side })}`;
  image.addEventListener("error", async () => {
    const answer = await fetch(source);
    const problem = answer.ok ? "the image cannot be shown" : (await answer.json()).error;
    image.replaceWith(make("p", { className: "problem small", textContent: problem }));
  }, { once: true });
  image.src = source;
  return image;
}

/** The first frame of a video; its sign where there is none. */
function frame(sample, part) {
  const image = make("img", { alt: SIGNS.video, loading: "lazy" });
  image.addEventListener("error", () => image.replaceWith(SIGNS.video), { once: true });
  image.src = `picture?${address(sample, part)}`;
  return image;
}

const SIGNS = { video: "▶", audio: "♪", json: "{ }", text: "¶", other: "▦" };

function card(sample) {
  const first = sample.parts.findIndex((part) => part.kind === "image");
  const shown = make("div", { className: "shown" });
  if (first >= 0) shown.append(picture(sample, first, 256));
  else if (sample.parts.length) {
    const other = sample.parts.find((part) => part.kind === "video" || part.kind === "audio") || sample.parts[0];
    const isDrawn = other.kind === "video" && catalog.frames;
    shown.append(isDrawn ? frame(sample, sample.parts.indexOf(other)) : SIGNS[other.kind]);
  }
  const about = make("div", { className: "about" }, make("b", { textContent: sample.key || `sample ${sample.number}` }));
  about.append(make("small", { textContent: sample.parts.map((part) => part.name).join(", ") }));
  const text = sample.parts.find((part) => part.kind === "text" && part.text) || sample.parts.find((part) => part.text);
  if (text) about.append(make("p", { textContent: text.text }));
  if (sample.problem) about.append(make("p", { className: "problem", textContent: sample.problem }));
  const button = make("button", { className: "card", title: sample.key }, shown, about);
  button.addEventListener("click", () => go({ ...state(), open: `${sample.source}.${sample.number}` }));
  return button;
}

function player(kind, source, title) {
  const shown = make(kind, { controls: true, preload: "metadata" });
  shown.addEventListener("loadedmetadata", () => {
    shown.dataset.seconds = shown.duration;
    title.append(` · ${shown.duration.toFixed(1)} s`);
  });
  shown.addEventListener("error", () => title.append(" · this browser cannot play it"));
  shown.src = source;
  return shown;
}

function showPart(sample, part, number) {
  const source = `part?${address(sample, number)}`;
  const link = make("a", { href: `part?${address(sample, number, { download: 1 })}`, textContent: "download" });
  const title = make("h3", {}, `${part.name} · ${bytes(part.size)} · `, link);
  const shown = [];
  if (part.kind === "image") shown.push(picture(sample, number, 1600));
  if (part.kind === "video" || part.kind === "audio") shown.push(player(part.kind, source, title));
  if (part.text !== undefined) shown.push(make("pre", { textContent: part.text + (part.cut ? "\n…" : "") }));
  return make("section", {}, title, ...shown);
}

async function showSample(open) {
  const dialog = byId("sample");
  if (!open) {
    if (dialog.open) dialog.close();
    return;
  }
  const [source, number] = open.split(".");
  try {
    const sample = await ask("api/sample", { source, number });
    const close = make("button", { className: "close", textContent: "Close" });
    close.addEventListener("click", () => go({ ...state(), open: "" }));
    const place = `sample ${sample.number}${sample.shard ? ` · ${sample.shard}` : ""}`;
    dialog.replaceChildren(close, make("h2", { textContent: sample.key }), make("small", { textContent: place }));
    if (sample.problem) dialog.append(make("p", { className: "problem", textContent: sample.problem }));
    dialog.append(...sample.parts.map((part, each) => showPart(sample, part, each)));
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    say(error.message, true);
  }
}

function showEntries(current) {
  byId("entries").replaceChildren(...catalog.entries.map((entry, number) => {
    const count = entry.samples === null ? "" : ` ${entry.samples.toLocaleString("en")} samples`;
    const about = `${entry.url === catalog.url ? "" : ` ${entry.url}`}${count}`;
    const button = make("button", {}, make("b", { textContent: entry.split }), make("small", { textContent: about }));
    if (entry.share) button.append(` ${entry.share}`);
    if (number === current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => go({ entry: number }));
    return button;
  }));
}

function showSamples(found, now) {
  byId("grid").replaceChildren(...found.samples.map(card));
  const last = found.first + found.loaded;
  byId("place").textContent = `${found.first.toLocaleString("en")}–${Math.max(found.first, last - 1).toLocaleString("en")} of ${found.total.toLocaleString("en")}`;
  const isStep = now.step !== undefined;
  const words = isStep ? `Step ${now.step} of rank ${now.rank || 0}. ` : "";
  say(words + (now.value ? `${found.samples.length} of ${found.loaded} samples pass the filter.` : ""));
  const move = (first) => () => go({ ...now, first, open: "" });
  byId("before").disabled = found.first === 0;
  byId("before").onclick = move(Math.max(0, found.first - catalog.page));
  byId("after").disabled = last >= found.total;
  byId("after").onclick = move(last);
}

function showMatches(found, now) {
  const jump = (match) => {
    const name = match.key ? `${match.key} · ${match.shard}` : match.shard;
    const button = make("button", { textContent: name });
    button.disabled = match.number === null;
    button.title = button.disabled ? "in another split part, or excluded" : "";
    button.addEventListener("click", () => go({ entry: now.entry, first: match.number }));
    return make("p", {}, button);
  };
  byId("place").textContent = "";
  byId("before").disabled = byId("after").disabled = true;
  const more = (list) => (list.length >= found.most ? `the first ${list.length}` : list.length);
  say(`${more(found.samples)} keys begin with “${now.search}”, ${more(found.shards)} shards have it in their path.`);
  byId("grid").replaceChildren(...[...found.samples, ...found.shards].map(jump));
}

let shown = "";
async function show() {
  const now = state();
  const { open, ...rest } = now;
  const view = JSON.stringify(rest);
  if (view !== shown) {
    const mine = ++asked;
    say("Reading …");
    for (const form of ["go", "search", "filter", "step"]) {
      for (const input of byId(form).elements) {
        if (input.name && (rest[input.name] !== undefined || form !== "step")) input.value = rest[input.name] ?? (input.name === "operator" ? "contains" : "");
      }
    }
    const entry = Number(rest.entry || 0);
    showEntries(rest.step === undefined ? entry : -1);
    byId("run").open = byId("run").open || rest.step !== undefined;
    try {
      const path = rest.search !== undefined ? "search" : rest.step !== undefined ? "step" : "samples";
      const found = await ask(`api/${path}`, path === "search" ? { entry, text: rest.search } : rest);
      if (mine !== asked) return;
      shown = view;
      if (path === "search") showMatches(found, rest);
      else showSamples(found, rest);
    } catch (error) {
      if (mine !== asked) return;
      shown = view;
      byId("grid").replaceChildren();
      say(error.message, true);
    }
  }
  await showSample(open);
}

function listen() {
  const onSubmit = (id, next) => byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    go(next(Object.fromEntries(new FormData(event.target))));
  });
  onSubmit("go", ({ first }) => ({ entry: state().entry, first }));
  onSubmit("search", ({ search }) => ({ entry: state().entry, search }));
  onSubmit("filter", (values) => {
    const { open, search, ...now } = state();
    return { ...now, ...values };
  });
  onSubmit("step", (values) => values);
  byId("sample").addEventListener("close", () => {
    if (state().open) go({ ...state(), open: "" });
  });
  window.addEventListener("hashchange", show);
}

async function start() {
  try {
    catalog = await ask("api/catalog");
  } catch (error) {
    say(error.message, true);
    return;
  }
  byId("url").textContent = catalog.url;
  document.title = `${catalog.url} – browse`;
  const inputs = Object.entries(RUN_LABELS).map(([name, label]) =>
    make("label", {}, `${label} `, make("input", { name, inputMode: "numeric", value: catalog.run[name] ?? "" })));
  byId("step").append(...inputs, make("button", { textContent: "Show" }));
  listen();
  if (!location.hash && catalog.run.step !== null) go(catalog.run);
  else await show();
}

start();
