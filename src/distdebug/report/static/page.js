// What every part of the page may use, and what the page does by itself.
//
// A part registers what draws it, and is told what is selected:
//
//   distdebug.section("matrix", (root, data) => { … });
//   distdebug.select({rank: 3, group: "0", seq: 17});
//   document.addEventListener("distdebug:select", (event) => event.detail.rank);
//
// What belongs to the selection has the class "is-selected" (text: elements with
// a data-rank get it here).  A link to "#rank=3" selects, too.

const makers = new Map();
const KEYS = ["rank", "group", "seq"];
let selected = {};

window.distdebug = Object.freeze({
  section: (name, draw) => makers.set(name, draw),
  select: (what) => select(what, true),
  selected: () => selected,
  // For what is drawn late, and is part of the selection only then.
  tellSelection: () => tellSelection(),
});

document.addEventListener("DOMContentLoaded", () => {
  for (const [name, draw] of makers) {
    drawSafely(document.getElementById(name), name, draw);
  }
  joinPlaces();
  document.documentElement.classList.add("is-drawn");
  followHash();
});
window.addEventListener("hashchange", followHash);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && KEYS.some((key) => key in selected)) {
    select({}, true);
  }
});

// All is shown on paper, in light colors, and folded again afterwards.
let folded = [];
window.addEventListener("beforeprint", () => {
  document.documentElement.classList.add("is-paper");
  folded = [...document.querySelectorAll("main > section > details:not([open])")];
  folded.forEach((details) => { details.open = true; });
});
window.addEventListener("afterprint", () => {
  document.documentElement.classList.remove("is-paper");
  folded.forEach((details) => { details.open = false; });
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) {
    copy(button);
  }
});

function drawSafely(root, name, draw) {
  if (!root) {
    return;
  }
  const data = document.getElementById(`data-${name}`);
  const failed = (error) => {
    console.error(`distdebug: ${name}`, error);
    const told = document.createElement("p");
    told.className = "failed";
    told.textContent = `This part could not be drawn: ${error}`;
    root.querySelector(".body").prepend(told);
  };
  try {
    // What is drawn later may fail later.
    Promise.resolve(draw(root, data && JSON.parse(data.textContent))).catch(failed);
  } catch (error) {
    failed(error);
  }
}

function select(what, isNew) {
  selected = {};
  for (const key of KEYS) {
    const told = String(what[key] ?? "");
    // An address may say anything.
    if (key === "group" ? told : /^[0-9]{1,15}$/.test(told)) {
      selected[key] = key === "group" ? told : Number(told);
    }
  }
  if (isNew) {
    keepHash();
  }
  for (const element of document.querySelectorAll("[data-rank]")) {
    const isIt = element.dataset.rank === String(selected.rank);
    element.classList.toggle("is-selected", isIt);
  }
  document.dispatchEvent(new CustomEvent("distdebug:select", {detail: {...selected}}));
  requestAnimationFrame(tellSelection);
}

function keepHash() {
  const hash = new URLSearchParams(selected).toString();
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  } catch {
    // A page without an address keeps none.
  }
}

function followHash() {
  const hash = location.hash.slice(1);
  const asked = new URLSearchParams(hash);
  if (KEYS.some((key) => asked.has(key))) {
    select(Object.fromEntries(asked), false);
    return;
  }
  const target = hash && document.getElementById(hash);
  unfold(target);
  const details = target && target.querySelector(":scope > details");
  if (details) {
    details.open = true;
  }
  if (target) {
    target.scrollIntoView({block: details ? "start" : "center"});
  }
}

// A line of a log that several parts show: each leads to the next one.
function joinPlaces() {
  const shown = new Map();
  for (const element of document.querySelectorAll("[data-place]")) {
    const place = element.textContent;
    shown.set(place, shown.get(place) ?? []);
    shown.get(place).push(element);
  }
  shown.delete("");
  const several = [...shown.values()].filter((alike) => alike.length > 1);
  several.forEach((alike, place) => alike.forEach((element, i) => {
    const link = document.createElement("a");
    link.href = `#place-${place}-${(i + 1) % alike.length}`;
    link.title = "where else this page shows it";
    link.append(...element.childNodes);
    element.id = `place-${place}-${i}`;
    element.append(link);
  }));
}

// Who was selected, and where on the page it is.
function tellSelection() {
  const bar = document.getElementById("selection");
  bar.replaceChildren();
  const words = [];
  if ("rank" in selected) {
    words.push(`rank ${selected.rank}`);
  }
  if ("group" in selected) {
    words.push(`group ${selected.group}`);
  }
  if ("seq" in selected) {
    words.push(`#${selected.seq}`);
  }
  bar.hidden = words.length === 0;
  if (bar.hidden) {
    return;
  }
  const name = document.createElement("b");
  name.textContent = words.join(" · ");
  bar.append(name);
  const sections = [...document.querySelectorAll("main > section")]
    .filter((section) => section.querySelector(".is-selected"));
  bar.append(...sections.map(jump));
  if (sections.length === 0) {
    bar.append("is not on this page");
  }
  const end = document.createElement("button");
  end.type = "button";
  end.textContent = "✕";
  end.setAttribute("aria-label", "End the selection");
  end.addEventListener("click", () => select({}, true));
  bar.append(end);
}

function jump(section) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = section.querySelector("h2").textContent;
  button.addEventListener("click", () => {
    const marks = [...section.querySelectorAll(".is-selected")];
    marks.forEach(unfold);
    // One of two pictures is for screens of another width.
    const seen = marks.find((mark) => mark.getClientRects().length) || section;
    seen.scrollIntoView({block: "center"});
  });
  return button;
}

function unfold(element) {
  for (let at = element; at; at = at.parentElement) {
    if (at.tagName === "DETAILS") {
      at.open = true;
    }
  }
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "copied";
  } catch {
    // Without the right to do so, at least it is marked.
    getSelection().selectAllChildren(source);
    button.textContent = "marked";
  }
  setTimeout(() => { button.textContent = "copy"; }, 2000);
}
