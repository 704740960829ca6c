"use strict";
(() => {
  const detail = document.getElementById("detail");
  if (!detail) return;
  let chosen = null;
  const show = (event) => {
    const rect = event.target;
    if (!(rect instanceof SVGRectElement) || !rect.dataset.name) return;
    if (chosen) chosen.classList.remove("on");
    chosen = rect;
    rect.classList.add("on");
    const name = document.createElement("b");
    name.textContent = rect.dataset.name;
    const reason = document.createElement("div");
    reason.textContent = rect.dataset.reason;
    detail.replaceChildren(name, " · " + rect.dataset.what, reason);
  };
  const map = document.querySelector(".map svg");
  map.addEventListener("pointerover", show);
  map.addEventListener("click", show);
})();
