"use strict";
// Lines from the chosen operator or table to its neighbours, and the same in words. Nothing is fetched.
const picture = document.getElementById("picture");
const lines = document.getElementById("lines");
const chosen = document.getElementById("chosen");
const neighbours = JSON.parse(document.getElementById("neighbours").textContent);
const buttons = [...picture.querySelectorAll("button.op")];
let current = null;

const buttonsOf = (name) => buttons.filter((button) => button.dataset.item === name);

function middle(button) {
  const box = button.getBoundingClientRect(), frame = picture.getBoundingClientRect();
  return [box.left + box.width / 2 - frame.left, box.top + box.height / 2 - frame.top];
}

function line(from, to, local) {
  const [x1, y1] = middle(from), [x2, y2] = middle(to), bend = (y1 + y2) / 2;
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", `M${x1},${y1} C${x1},${bend} ${x2},${bend} ${x2},${y2}`);
  if (local) path.setAttribute("class", "local");
  lines.append(path);
}

function words(entry) {
  const list = (pairs, verb) =>
    pairs.length ? ` ${verb} ` + pairs.map(([name, place, far]) => name + (far ? ` (${place}, over the network)` : "")).join(", ") + "." : "";
  return entry.says + "." + list(entry.from, "Reads") + list(entry.to, "Read by");
}

function draw() {
  lines.replaceChildren();
  for (const button of buttons) {
    button.classList.remove("near");
    button.setAttribute("aria-pressed", String(button.dataset.item === current));
  }
  if (current === null) {
    chosen.textContent = "Nothing is chosen.";
    return;
  }
  const entry = neighbours[current];
  chosen.textContent = words(entry);
  for (const own of buttonsOf(current)) {
    for (const [name, , far] of [...entry.from, ...entry.to]) {
      for (const other of buttonsOf(name)) {
        other.classList.add("near");
        line(own, other, !far);
      }
    }
  }
}

function choose(name) {
  current = current === name ? null : name;
  draw();
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
for (const [number, button] of buttons.entries()) {
  button.addEventListener("click", () => choose(button.dataset.item));
  button.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(current);
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    buttons[(number + step + buttons.length) % buttons.length].focus();
  });
}
addEventListener("resize", draw);
for (const items of picture.querySelectorAll(".items")) items.addEventListener("scroll", draw);
draw();
