// Rows of jobs change as the jobs do: one stream for all of them.
import { root } from "./api.js";

const rows = document.querySelector("tbody[data-live]");

function follow() {
  const shown = [...rows.children];
  const open = shown.filter((r) => !["succeeded", "failed", "cancelled"].includes(r.dataset.state));
  const plain = !location.search && /\/jobs$|\/$/.test(location.pathname);
  if (!open.length && !plain) return;
  const asked = new URLSearchParams();
  if (open.length) asked.set("ids", open.map((r) => r.dataset.id).join(","));
  if (plain && shown.length) asked.set("after", shown[0].dataset.id);
  const events = new EventSource(`${root}/jobs/events?${asked}`);
  events.onmessage = (event) => {
    const { id, html } = JSON.parse(event.data);
    const template = document.createElement("template");
    template.innerHTML = html; // a row made by the service's own template, which escapes all names
    const row = template.content.firstElementChild;
    const old = document.getElementById(`job-${id}`);
    if (old && old.contains(document.activeElement)) {
      // Whoever is at a link of the row stays there.
      [...old.cells].slice(1).forEach((cell, i) => cell.replaceWith(row.cells[i + 1].cloneNode(true)));
      old.dataset.state = row.dataset.state;
    } else if (old) old.replaceWith(row);
    else {
      row.classList.add("changed");
      rows.prepend(row);
      setTimeout(() => row.classList.remove("changed"), 1500);
    }
  };
  addEventListener("pagehide", () => events.close());
}

if (rows) follow();
