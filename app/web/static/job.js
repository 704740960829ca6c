// A job as it goes on: its phases, its progress, its log.
import { duration, make, root } from "./api.js";

const phases = document.getElementById("phases");
if (phases && "live" in phases.dataset) {
  const bar = document.getElementById("progress");
  const text = document.getElementById("progress-text");
  const log = document.getElementById("log");
  const count = document.getElementById("log-count");
  const items = new Map([...phases.children].map((li) => [li.dataset.phase, li]));
  const begun = new Map();
  const began = Number(phases.dataset.began);
  let now = phases.querySelector(".now");
  if (now) begun.set(now.dataset.phase, Date.now());

  const events = new EventSource(`${root}/v1/jobs/${phases.dataset.job}/events`);
  const last = Number(phases.dataset.last);

  const note = (...parts) => {
    const at = Math.max(Date.now() / 1000 - began, 0).toFixed(2);
    const follow = log.scrollTop + log.clientHeight > log.scrollHeight - 24;
    log.append(make("li", {}, make("span", { class: "log-time" }, `+${at} s`), " ", ...parts));
    count.textContent = `${log.children.length} events`;
    if (follow) log.scrollTop = log.scrollHeight;
  };

  const move = (name) => {
    const next = items.get(name);
    if (!next || next === now) return;
    if (now) {
      now.className = "done";
      const since = begun.get(now.dataset.phase);
      if (since) now.querySelector(".phase-time").textContent = duration((Date.now() - since) / 1000);
    }
    next.className = "now";
    begun.set(name, Date.now());
    now = next;
  };

  events.addEventListener("progress", (event) => {
    if (Number(event.lastEventId) <= last) return;
    const { phase, done, total } = JSON.parse(event.data);
    move(phase.split(":")[0]); // what follows tells of it
    if (total) {
      bar.max = total;
      bar.value = done;
    } else bar.removeAttribute("value");
    text.textContent = total ? `${phase} ${done} of ${total}` : phase;
    note(`${phase} ${done}/${total}`);
  });

  events.addEventListener("state", (event) => {
    if (Number(event.lastEventId) <= last) return;
    const { state, code = "", detail = "" } = JSON.parse(event.data);
    note(make("b", {}, state.replaceAll("_", " ")), ` ${code} ${detail}`);
    text.textContent = state.replaceAll("_", " ");
    const badge = document.querySelector("#state .badge");
    badge.className = `badge ${state}`;
    badge.textContent = state.replaceAll("_", " ");
    if (["succeeded", "failed", "cancelled"].includes(state)) {
      events.close();
      location.reload();
    }
  });
  addEventListener("pagehide", () => events.close());
}
