// The merged stacks: what the browser does not fold and unfold by itself.

const OWN = 1;
const NATIVE = 2;
const BACKGROUND = 1;
const MAIN = 2;
const MOST_SHOWN = 16;

distdebug.section("stacks", (root, data) => {
  const tools = root.querySelector(".tools");
  tools.hidden = false;
  tools.addEventListener("submit", (event) => event.preventDefault());
  tools.addEventListener("click", ({target}) => {
    if (target.dataset.do) {
      fold(root, target.dataset.do === "expand");
    } else if (target.dataset.download) {
      download(target.dataset.download, data.downloads[target.dataset.download]);
    }
  });
  root.querySelector(".tree").addEventListener("keydown", walk);
  const input = tools.querySelector("input");
  searchWith(root, data, input, tools.querySelector(".hits"));
  document.addEventListener("distdebug:select", ({detail}) => {
    showRank(root, data, detail.rank);
    markThreads(root, input.value.trim().toLowerCase());
  });
});

function fold(root, isOpen) {
  for (const details of root.querySelectorAll(".tree details")) {
    details.open = isOpen;
  }
}

function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/plain"}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// ---- keys: as in any other tree ----

function walk(event) {
  const {key, target} = event;
  if (target.tagName !== "SUMMARY" || event.altKey || event.ctrlKey || event.metaKey) {
    return;
  }
  const details = target.parentElement;
  const step = {ArrowDown: 1, ArrowUp: -1}[key];
  if (step) {
    const all = [...event.currentTarget.querySelectorAll("summary")].filter(isSeen);
    all[all.indexOf(target) + step]?.focus();
  } else if (key === "ArrowRight") {
    details.open = true;
  } else if (key === "ArrowLeft" && details.open) {
    details.open = false;
  } else if (key === "ArrowLeft") {
    details.parentElement.closest(".branch")?.querySelector("summary").focus();
  } else {
    return;
  }
  event.preventDefault();
}

function isSeen(summary) {
  return summary.parentElement.parentElement.closest("details:not([open])") === null;
}

// ---- search ----

function searchWith(root, data, input, told) {
  let hits = [];
  let now = -1;
  let waiting = 0;

  function search() {
    hits.forEach((hit) => hit.classList.remove("hit", "is-now"));
    now = -1;
    const asked = input.value.trim().toLowerCase();
    hits = asked ? found(root, data, asked) : [];
    for (const hit of hits) {
      hit.classList.add("hit");
      unfold(hit);
    }
    told.value = asked ? count(hits.length, "match", "matches") : "";
    tellElsewhere(root, data, asked);
    markThreads(root, asked);
  }

  function next(step) {
    if (hits.length) {
      hits[now]?.classList.remove("is-now");
      now = (now + step + hits.length) % hits.length;
      hits[now].classList.add("is-now");
      hits[now].scrollIntoView({block: "center"});
      told.value = `${now + 1} of ${count(hits.length, "match", "matches")}`;
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 120);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") {
      return;
    }
    clearTimeout(waiting);
    if (now < 0) {
      search();
    }
    const rank = rankIn(data, input.value.trim().toLowerCase());
    if (rank >= 0) {
      distdebug.select({rank});
    }
    next(event.shiftKey ? -1 : 1);
  });
}

function found(root, data, asked) {
  const rank = rankIn(data, asked);
  if (rank >= 0) {
    return branchesOf(root, data, rank).map((branch) => branch.firstElementChild);
  }
  const texts = root.querySelectorAll(".tree .frames li, .tree .end > p, .tree .who");
  return [...texts].filter((text) => text.textContent.toLowerCase().includes(asked));
}

// The tree shows main threads: in whose other threads is it, too?
function tellElsewhere(root, data, asked) {
  const told = root.querySelector(".elsewhere");
  const ranks = asked && rankIn(data, asked) < 0 ? ranksWith(data, asked) : [];
  told.hidden = ranks.length === 0;
  told.replaceChildren(`In other threads of ${count(ranks.length, "rank", "ranks")}: `);
  for (const rank of ranks.slice(0, MOST_SHOWN)) {
    const link = make("a", "rank", `rank ${rank}`);
    link.href = `#rank=${rank}`;
    link.dataset.rank = rank;
    told.append(link, " ");
  }
  if (ranks.length > MOST_SHOWN) {
    told.append("…");
  }
}

function ranksWith(data, asked) {
  const has = (number) => data.texts[number].toLowerCase().includes(asked);
  const frames = data.frames.map(([name, place]) => has(name) || has(place));
  const stacks = data.stacks.map((stack) => stack.some((frame) => frames[frame]));
  const threads = data.threads.map(
    ([name, , flag, stack, native]) => !(flag & MAIN) && (has(name) || stacks[stack] || stacks[native]),
  );
  const sets = data.sets.map(([members]) => members.some((thread) => threads[thread]));
  const ranks = data.rank.filter((rank, member) => rank !== null && sets[data.set[member]]);
  return [...new Set(ranks)].sort((a, b) => a - b);
}

function markThreads(root, asked) {
  for (const line of root.querySelectorAll(".asked li, .asked summary")) {
    const isHit = asked !== "" && line.textContent.toLowerCase().includes(asked);
    line.classList.toggle("hit", isHit);
    for (let at = isHit ? line.closest("details") : null; at; at = at.parentElement.closest("details")) {
      at.open = true;
    }
  }
}

// A number that no rank has is one of a line.
function rankIn(data, asked) {
  const number = /^(?:ranks?\s*)?(\d{1,7})$/.exec(asked);
  return number && data.rank.includes(Number(number[1])) ? Number(number[1]) : -1;
}

function unfold(element) {
  for (let at = element.closest(".branch, .library"); at; at = at.parentElement.closest("details")) {
    at.open = true;
  }
}

function branchesOf(root, data, rank) {
  const numbers = new Set(membersOf(data, rank).map((member) => data.branch[member]));
  return [...numbers]
    .map((number) => root.querySelector(`[data-branch="${number}"]`))
    .filter((branch) => branch !== null);
}

function membersOf(data, rank) {
  return data.rank.flatMap((known, member) => (known === rank ? [member] : []));
}

// ---- the threads of one rank ----

function showRank(root, data, rank) {
  root.querySelector(".branch > .is-selected")?.classList.remove("is-selected");
  const asked = root.querySelector(".asked");
  const members = rank === undefined ? [] : membersOf(data, rank);
  asked.hidden = members.length === 0;
  asked.replaceChildren(...members.slice(0, MOST_SHOWN).flatMap((member) => process(data, member)));
  for (const branch of branchesOf(root, data, rank)) {
    branch.firstElementChild.classList.add("is-selected");
    unfold(branch);
  }
}

function process(data, member) {
  const text = (column) => data.texts[data[column][member]];
  // Several jobs have a rank of this number.
  const isOne = membersOf(data, data.rank[member]).length === 1;
  const of = !isOne && text("job") ? ` of job ${text("job")}` : "";
  const parts = [make("h3", "", `Threads of rank ${data.rank[member]}${of}`)];
  const words = [`pid ${data.pid[member]}`];
  for (const [word, column] of [["on", "host"], ["of job", "job"]]) {
    if (text(column) && !(of && column === "job")) {
      words.push(`${word} ${text(column)}`);
    }
  }
  parts.push(make("p", "muted", words.join(" ")));
  const set = data.sets[data.set[member]];
  if (!set) {
    parts.push(make("p", "muted", "There was no room for its threads on this page."));
    return parts;
  }
  const [threads, leftOut, kernels] = set;
  if (kernels.length) {
    parts.push(make("p", "", `On its GPU: ${kernels.map((kernel) => data.texts[kernel]).join(", ")}`));
  }
  const idle = threads.filter((thread) => data.threads[thread][2] & BACKGROUND);
  const busy = threads.filter((thread) => !(data.threads[thread][2] & BACKGROUND));
  parts.push(...busy.map((thread, place) => threadOf(data, thread, place === 0)));
  if (idle.length) {
    const words = `${count(idle.length, "thread", "threads")} that only wait${idle.length === 1 ? "s" : ""} for work`;
    const more = folded("thread", make("span", "muted", words));
    more.append(...idle.map((thread) => threadOf(data, thread, false)));
    parts.push(more);
  }
  if (leftOut) {
    parts.push(make("p", "muted", `${count(leftOut, "more thread", "more threads")}`));
  }
  return parts;
}

function threadOf(data, number, isOpen) {
  const [name, words, , stack, native] = data.threads[number];
  const title = make("b", "", data.texts[name] || "thread");
  const details = folded("thread", title, make("span", "muted", ` ${data.texts[words]}`));
  details.open = isOpen;
  for (const [what, frames] of [["", data.stacks[stack]], ["native", data.stacks[native]]]) {
    if (frames.length) {
      details.append(make("p", "kind", what), framesOf(data, frames));
    }
  }
  if (details.childElementCount === 1) {
    details.append(make("p", "muted", "no stack"));
  }
  return details;
}

function framesOf(data, numbers) {
  const list = make("ol", "frames");
  for (const number of numbers) {
    if (number < 0) {
      list.append(make("li", "gap", `… ${count(-number, "more frame", "more frames")} …`));
      continue;
    }
    const [name, place, flags] = data.frames[number];
    const line = make("li", flags & OWN ? "own" : "");
    line.append(make("span", "name", data.texts[name]), " ");
    line.append(make("code", "place", data.texts[place] || (flags & NATIVE ? "native" : "")));
    list.append(line);
  }
  return list;
}

function folded(kind, ...words) {
  const details = make("details", kind);
  const summary = make("summary", "");
  summary.append(...words);
  details.append(summary);
  return details;
}

function make(tag, kind, text = "") {
  const element = document.createElement(tag);
  if (kind) {
    element.className = kind;
  }
  element.textContent = text;
  return element;
}

function count(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
