// Boxes of the picture can be chosen, and show what is chosen elsewhere.

distdebug.section("graph", (root, data) => {
  const boxes = [...root.querySelectorAll(".box")];
  for (const svg of root.querySelectorAll("svg")) {
    // What can be chosen is more than a picture.
    svg.setAttribute("role", "group");
    showCulprit(svg);
  }

  for (const box of boxes) {
    const what = chosenBy(box, data);
    if (!what) {
      continue;
    }
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "button");
    box.setAttribute("aria-label", box.querySelector("title").textContent);
    box.addEventListener("click", () => distdebug.select(what));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        distdebug.select(what);
      }
    });
  }

  document.addEventListener("distdebug:select", ({detail}) => {
    for (const box of boxes) {
      box.classList.toggle("is-selected", isChosen(box, data, detail));
    }
  });
});

// A picture that is wider than the screen begins with who is at fault.
function showCulprit(svg) {
  const culprit = svg.querySelector(".box.culprit");
  const field = svg.parentElement;
  if (culprit && field.scrollWidth > field.clientWidth) {
    const {left, right} = culprit.getBoundingClientRect();
    const middle = (left + right) / 2 - field.getBoundingClientRect().left;
    field.scrollLeft += middle - field.clientWidth / 2;
  }
}

function chosenBy(box, data) {
  if (box.dataset.group !== undefined) {
    return {group: box.dataset.group, seq: Number(box.dataset.seq)};
  }
  const spans = data.ranks[box.dataset.box];
  return spans.length ? {rank: spans[0][0]} : null;
}

function isChosen(box, data, {rank, group, seq}) {
  const spans = data.ranks[box.dataset.box];
  if (spans.length) {
    return spans.some(([first, last]) => first <= rank && rank <= last);
  }
  return box.dataset.group === group && Number(box.dataset.seq) === seq;
}
