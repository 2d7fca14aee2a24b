// The page of energon-stream browse. What comes from a dataset becomes text of elements, and never markup.
"use strict";

const byId = (id) => document.getElementById(id);
const RUN_LABELS = {
  step: "step", batch_size: "batch size", rank: "rank", world_size: "ranks", num_workers: "workers",
  num_streams: "streams", seed_offset: "seed", shuffle_buffer_size: "shuffle buffer",
  max_samples_per_sequence: "samples a sequence", parallel_shard_iters: "shards at once",
};
const KEY_END = 14; // characters of a key that are always seen
let catalog = null;
let asked = 0; // answers of earlier questions are dropped
let page = { opens: [], before: null, after: null }; // what is shown: its samples, and the views beside it

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

/** A key whose end is seen however long it is. */
function shortened(key) {
  const signs = [...key];
  const parts = [signs.slice(0, -KEY_END), signs.slice(-KEY_END)].filter((part) => part.length);
  return make("b", {}, ...parts.map((part) => make("span", { textContent: part.join("") })));
}

const size = (sample) => sample.parts.reduce((sum, part) => sum + part.size, 0);

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
  const about = make("div", { className: "about" }, shortened(sample.key || `sample ${sample.number}`));
  const names = sample.parts.map((part) => part.name).join(", ");
  about.append(make("small", { textContent: `${names} · ${bytes(size(sample))}` }));
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

/** Shows other elements in a place; pictures and players of the former ones stop loading, and are let go of. */
function refill(id, ...elements) {
  for (const loaded of byId(id).querySelectorAll("img, video, audio")) {
    loaded.removeAttribute("src");
    loaded.load?.();
  }
  byId(id).replaceChildren(...elements);
}

/** Opens the sample beside the open one, on another page if need be. */
function step(by) {
  const { open, ...now } = state();
  const at = page.opens.indexOf(open);
  const found = at < 0 ? undefined : page.opens[at + by];
  const first = by < 0 ? page.before : page.after;
  if (found !== undefined) go({ ...now, open: found });
  else if (at >= 0 && first !== null) go({ ...now, first, open: by < 0 ? `<${open}` : "first" });
}

async function showSample(open) {
  const dialog = byId("sample");
  if (!open) {
    refill("parts");
    if (dialog.open) dialog.close();
    return;
  }
  if (open === "first" || open[0] === "<") { // the one before a sample, which pages may share
    const at = open === "first" ? 0 : page.opens.indexOf(open.slice(1));
    const found = page.opens.at(at > 0 ? at - 1 : at) ?? "";
    location.replace(`#${new URLSearchParams({ ...state(), open: found })}`);
    return;
  }
  const [source, number] = open.split(".");
  const at = page.opens.indexOf(open);
  byId("previous").disabled = at < 0 || (at === 0 && page.before === null);
  byId("next").disabled = at < 0 || (at === page.opens.length - 1 && page.after === null);
  try {
    const sample = await ask("api/sample", { source, number });
    if (state().open !== open) return; // a later one is asked for
    refill("parts");
    const where = sample.shard ? ` · ${sample.shard}` : "";
    byId("key").textContent = sample.key;
    byId("about").textContent = `sample ${sample.number}${where} · ${bytes(size(sample))}`;
    if (sample.problem) byId("parts").append(make("p", { className: "problem", textContent: sample.problem }));
    byId("parts").append(...sample.parts.map((part, each) => showPart(sample, part, each)));
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    say(error.message, true);
  }
}

/** Lists the datasets, and marks one, or, with null, those that the steps of a training come from. */
function showEntries(current) {
  byId("entries").replaceChildren(...catalog.entries.map((entry, number) => {
    const count = entry.samples === null ? "" : ` ${entry.samples.toLocaleString("en")} samples`;
    const about = `${entry.url === catalog.url ? "" : ` ${entry.url}`}${count}`;
    const button = make("button", {}, make("b", { textContent: entry.split }), make("small", { textContent: about }));
    if (entry.share) button.append(` ${entry.share}`);
    if (current === null ? entry.split === catalog.trained : number === current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => go({ entry: number }));
    return button;
  }));
}

function showSamples(found, now) {
  refill("grid", ...found.samples.map(card));
  const last = found.first + found.loaded;
  byId("place").textContent = `${found.first.toLocaleString("en")}–${Math.max(found.first, last - 1).toLocaleString("en")} of ${found.total.toLocaleString("en")}`;
  page = {
    opens: found.samples.map((sample) => `${sample.source}.${sample.number}`),
    before: found.first === 0 ? null : Math.max(0, found.first - catalog.page),
    after: last >= found.total ? null : last,
  };
  const isStep = now.step !== undefined;
  const words = isStep ? `Step ${now.step} of rank ${now.rank || 0}. ` : "";
  say(words + (now.value ? `${found.samples.length} of ${found.loaded} samples pass the filter.` : ""));
  if (now.value && !found.samples.length && !isStep) offer("Search keys", { entry: now.entry, search: now.value });
  move("before", page.before, (first) => ({ ...now, first }));
  move("after", page.after, (first) => ({ ...now, first }));
  const { first, ...run } = now;
  move("step-before", Number(now.step) || null, (from) => ({ ...run, step: from - 1 }));
  move("step-after", isStep ? Number(now.step) : null, (from) => ({ ...run, step: from + 1 }));
  byId("steps").hidden = !isStep;
}

/** Lets a button lead to another view, if there is one. */
function move(id, place, view) {
  byId(id).disabled = place === null;
  byId(id).onclick = () => go(view(place));
}

/** Adds a button to the status that leads to another view. */
function offer(label, view) {
  const button = make("button", { textContent: label });
  button.addEventListener("click", () => go(view));
  byId("status").append(button);
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
  byId("before").disabled = byId("after").disabled = byId("steps").hidden = true;
  page = { opens: [], before: null, after: null };
  const many = (list, one, more) => `${list.length >= found.most ? "the first " : ""}${list.length} ${list.length === 1 ? one : more}`;
  say(`${many(found.samples, "key begins", "keys begin")} with “${now.search}”, ${many(found.shards, "shard has", "shards have")} it in the path.`);
  if (!found.samples.length) {
    const view = { entry: now.entry, operator: "contains", value: now.search };
    offer("Look within keys", { ...view, field: "key" });
    offer("Look in texts", view);
  }
  refill("grid", ...[...found.samples, ...found.shards].map(jump));
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
    showEntries(rest.step === undefined ? entry : null);
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
      refill("grid");
      page = { opens: [], before: null, after: null };
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
  byId("close").addEventListener("click", () => go({ ...state(), open: "" }));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isTaken = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest("input, select, video, audio");
    if (!by || isTaken) return;
    if (byId("sample").open) step(by);
    else byId(by < 0 ? "before" : "after").click();
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
