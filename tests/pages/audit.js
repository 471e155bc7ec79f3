// What is wrong with a page for those who see little, or use no mouse?
// Gives a list of complaints; each names an element.
() => {
  const complaints = [];
  const complain = (what, e) => complaints.push(`${what}: ${e.outerHTML.slice(0, 140)}`);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const isSeen = (e) => e.checkVisibility({visibilityProperty: true});

  for (const e of all("th:not([scope])")) complain("header without a scope", e);
  for (const e of all("table")) {
    if (!e.querySelector("th")) complain("table without headers", e);
  }
  for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
    for (const e of all(`[${name}]`)) {
      for (const id of e.getAttribute(name).split(" ")) {
        if (!document.getElementById(id)) complain(`${name} leads nowhere`, e);
      }
    }
  }
  for (const e of all("[tabindex]")) {
    if (e.tabIndex > 0) complain("out of the order of the page", e);
  }
  for (const e of all("a[href], button, input, select, summary, [role=button]").filter(isSeen)) {
    if (e.tabIndex < 0) complain("no key reaches it", e);
    const box = e.getBoundingClientRect();
    if (Math.min(box.width, box.height) < 15) complain("too small to be hit", e);
  }
  for (const e of all("[role=search], [role=group], section, nav")) {
    const isNamed = ["aria-label", "aria-labelledby"].some((name) => e.hasAttribute(name));
    if (!isNamed) complain("region without a name", e);
  }

  // Every text, against what lies behind it.
  const numbers = (color) => {
    const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], ground) =>
    [r, g, b].map((c, i) => c * a + ground[i] * (1 - a)).concat(1);
  const brightness = (color) => {
    const [r, g, b] = color.map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [dark, light] = [brightness(a), brightness(b)].sort((x, y) => x - y);
    return (light + 0.05) / (dark + 0.05);
  };
  const groundsOf = (e) => {
    const shape = e.closest("svg") && e.parentElement.querySelector("rect");
    if (shape) return [numbers(getComputedStyle(shape).fill)];
    const tints = [];
    for (let at = e; at; at = at.parentElement) {
      const {backgroundColor, backgroundImage} = getComputedStyle(at);
      const stops = backgroundImage.match(/rgba?\([^)]*\)/g);
      const grounds = stops ? stops.map(numbers) : [numbers(backgroundColor)];
      if (grounds.every(([, , , a]) => a === 1)) {
        return grounds.map((ground) => tints.reduceRight((on, tint) => over(tint, on), ground));
      }
      tints.push(grounds[0]);
    }
    return [[255, 255, 255, 1]];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    const isText = walker.currentNode.textContent.trim() && !e.closest("script, style, title, desc, option");
    if (!isText || !isSeen(e)) continue;
    const {color, fill} = getComputedStyle(e);
    for (const ground of groundsOf(e)) {
      const own = over(numbers(e.closest("svg") ? fill : color), ground);
      if (contrast(own, ground) < 4.5) complain(`contrast ${contrast(own, ground).toFixed(2)}`, e);
    }
  }
  return complaints;
}
