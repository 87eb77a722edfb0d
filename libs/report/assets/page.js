"use strict";
// Tooltips and highlighting; the page is complete without them. `data` is made by libs/cli/report/page.py.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const fleet = document.querySelector(".fleet");
  const tip = document.getElementById("tip");
  if (!fleet) return;
  const paths = [...fleet.querySelectorAll(".a")];
  const seconds = (ms) => (ms / 1000).toFixed(ms < 9950 ? 2 : 1) + " s";

  function light(wanted) {
    fleet.classList.toggle("dim", wanted !== null);
    for (const path of paths) path.classList.toggle("on", wanted !== null && wanted(data.attempts[+path.dataset.a]));
  }

  function line(text, tag) {
    const element = document.createElement(tag || "div");
    element.textContent = text;
    return element;
  }

  function describe(a) {
    const shape = a.devices === 1 ? (a.share < 1000 ? `${a.share / 10} % of a device` : "1 device") : `gang of ${a.devices}`;
    const lines = [
      line(a.name, "b"),
      line(`${data.teams[a.team]} · ${data.classes[a.klass]} · ${shape}`, "span"),
      line(`attempt ${a.number}: ${a.outcome || "still open"}`),
      line(`from ${seconds(a.from)} for ${seconds(a.to - a.from)}, waited ${seconds(a.wait)}`),
      line(a.nodes),
    ];
    if (a.note) lines.push(line(a.note));
    tip.replaceChildren(...lines);
  }

  function place(event) {
    const margin = 14, box = tip.getBoundingClientRect();
    const x = event.clientX + margin + box.width > innerWidth ? event.clientX - box.width - margin : event.clientX + margin;
    const y = event.clientY + margin + box.height > innerHeight ? event.clientY - box.height - margin : event.clientY + margin;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, y) + "px";
  }

  let shown = null;
  fleet.addEventListener("pointermove", (event) => {
    const path = event.target.closest(".a");
    if (path !== shown) {
      shown = path;
      tip.hidden = !path;
      const attempt = path && data.attempts[+path.dataset.a];
      light(attempt ? (other) => other.job === attempt.job : null);
      if (attempt) describe(attempt);
    }
    if (path) place(event);
  });
  fleet.addEventListener("pointerleave", () => { shown = null; tip.hidden = true; light(null); });
  for (const key of document.querySelectorAll(".legend .who")) {
    const team = +key.dataset.team, klass = +key.dataset.klass;
    key.addEventListener("pointerenter", () => light((a) => a.team === team && a.klass === klass));
    key.addEventListener("pointerleave", () => light(null));
  }
})();
