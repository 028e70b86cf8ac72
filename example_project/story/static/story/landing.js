// Fetches the state, shows it, and sends the forms without leaving the page.
"use strict";

const BUSY_MS = 250, IDLE_MS = 1500;
const SILENT = "The demo does not answer. Was it stopped?";
const find = (id) => document.getElementById(id);
const forms = [...document.querySelectorAll("form.scene")];
const picture = document.querySelector(".picture");

let chosen = null; // the scene selected in the history; null: the latest
let latest = null;
let followed = null; // the scene that is playing and shown
let timer = null;
let asked = 0; // an older answer that comes after a newer one is not shown

function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// -- showing ----------------------------------------------------------------------------------

function show(state) {
  latest = state;
  for (const form of forms) {
    const button = form.querySelector("button");
    button.disabled = state.playing || "missing" in button.dataset;
    const current = state.playing && state.history.length && !state.history[0].ended;
    form.classList.toggle("playing", Boolean(current) && state.history[0].kind === form.dataset.kind);
  }
  showScene(state);
  showHistory(state);
  showInvoices(state.invoices);
}

function showScene({ scene, now }) {
  find("hint").hidden = scene !== null;
  const width = Math.max(640, picture.clientWidth);
  if (scene === null) {
    Timeline.draw(find("timeline"), { started: now, ended: now, events: [] }, now, width);
    return;
  }
  find("shown").textContent = `${scene.title}: ${scene.key}`;
  const verdict = find("verdict");
  const word = scene.ended === null ? "live" : scene.ok ? "ok" : "bad";
  verdict.hidden = false;
  verdict.className = `verdict ${word}`;
  verdict.textContent = { live: "playing", ok: "as it should be", bad: "something is wrong" }[word];
  Timeline.draw(find("timeline"), scene, now, width);
  followTimeline(scene);
  showSteps(scene);
  showEvents(scene);
}

// On a narrow screen the timeline is wider than its frame: scroll to the current time, then to the
// end. A faded edge shows that there is more.
function followTimeline(scene) {
  const now = picture.querySelector(".now");
  if (scene.ended === null && now) {
    followed = scene.id;
    picture.scrollLeft = now.getBBox().x - 0.6 * picture.clientWidth;
  } else if (scene.id === followed) {
    followed = null;
    picture.scrollLeft = picture.scrollWidth;
  }
}

function showEdge() {
  const hidden = picture.scrollWidth - picture.clientWidth - picture.scrollLeft;
  picture.classList.toggle("more", hidden > 8);
}

// The scene is shown below the buttons, outside of the visible part of most screens.
function showStage() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.querySelector(".stage").scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}

// Add only new steps: a screen reader reads every change, and must not read all steps again.
function showSteps(scene) {
  const list = find("steps");
  if (list.dataset.scene !== String(scene.id)) {
    list.replaceChildren();
    list.dataset.scene = scene.id;
  }
  for (const step of scene.steps.slice(list.children.length)) {
    list.append(make("li", step.ok === null ? "" : step.ok ? "ok" : "bad", step.text));
  }
}

function showEvents(scene) {
  const rows = scene.events.map((event) => {
    const row = make("tr");
    row.append(
      make("td", "number", `${((event.at_ms - scene.started) / 1000).toFixed(2)} s`),
      make("td", event.kind, event.kind),
      make("td", "number", Timeline.short(event.fence)),
      make("td", "number", String(event.pid)),
    );
    return row;
  });
  find("events").replaceChildren(...rows);
}

function showHistory({ history, scene }) {
  if (!history.length) return;
  const list = find("history");
  const shape = JSON.stringify([history, scene.id]);
  if (list.dataset.shape === shape) return;
  list.dataset.shape = shape;
  const focused = document.activeElement?.dataset.id;
  list.replaceChildren(...history.map((entry) => {
    const item = make("li");
    const button = make("button");
    const mark = entry.ended === null ? "…" : entry.ok ? "✓" : "✗";
    button.append(
      make("span", `mark ${entry.ok ? "ok" : entry.ok === false ? "bad" : ""}`, mark),
      make("span", "", entry.title),
      make("span", "key-name", entry.key),
    );
    button.type = "button";
    button.dataset.id = entry.id;
    button.setAttribute("aria-pressed", String(entry.id === scene.id));
    button.addEventListener("click", () => {
      chosen = entry.id;
      refresh();
    });
    item.append(button);
    return item;
  }));
  if (focused) list.querySelector(`[data-id="${focused}"]`)?.focus();
}

function showInvoices(invoices) {
  if (!invoices.length) return;
  find("invoices").replaceChildren(...invoices.map((invoice) => {
    const row = make("tr");
    row.append(
      make("td", "", invoice.number),
      make("td", "", invoice.customer),
      make("td", "number", invoice.amount),
      make("td", "number", String(invoice.payments)),
      make("td", "number", Timeline.short(invoice.fence)),
    );
    return row;
  }));
}

// -- fetching ---------------------------------------------------------------------------------

async function refresh() {
  clearTimeout(timer);
  let busy = false;
  const number = ++asked;
  try {
    const query = chosen === null ? "" : `?scene=${chosen}`;
    const response = await fetch(document.body.dataset.state + query);
    if (response.ok) {
      const state = await response.json();
      if (number !== asked) return;
      if (find("refusal").textContent === SILENT) find("refusal").textContent = "";
      show(state);
      busy = state.playing;
    }
  } catch {
    if (number !== asked) return;
    find("refusal").textContent = SILENT;
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, busy ? BUSY_MS : IDLE_MS);
}

async function play(form) {
  find("refusal").textContent = "";
  for (const other of forms) other.querySelector("button").disabled = true;
  try {
    const response = await fetch(form.action, {
      method: "POST",
      body: new FormData(form),
      headers: { Accept: "application/json" },
    });
    const { refusal } = response.headers.get("Content-Type")?.startsWith("application/json")
      ? await response.json()
      : { refusal: "The demo refused. Reload the page, and try again." };
    find("refusal").textContent = refusal;
    chosen = null;
    if (!refusal) showStage();
  } catch {
    find("refusal").textContent = SILENT;
  }
  refresh();
}

for (const form of forms) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    play(form);
  });
}
addEventListener("resize", () => latest && showScene(latest));
picture.addEventListener("scroll", showEdge);
new ResizeObserver(showEdge).observe(find("timeline"));
refresh();
