// What every page does: moments that stay true, and buttons that call an operation.
import { call, root } from "./api.js";

const notice = document.getElementById("notice");
let forget = 0;

export function tell(text) {
  notice.textContent = text;
  clearTimeout(forget);
  forget = setTimeout(() => (notice.textContent = ""), 6000);
}

function ago(seconds) {
  const past = Math.max(Date.now() / 1000 - seconds, 0);
  for (const [name, unit] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (past >= unit) return `${Math.round(past / unit)}\u00a0${name} ago`;
  return past < 5 ? "just now" : `${Math.round(past)}\u00a0s ago`;
}

function refresh() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    time.textContent = ago(Number(time.dataset.ago));
    time.title = new Date(Number(time.dataset.ago) * 1000).toLocaleString();
  }
}
refresh();
setInterval(refresh, 15000);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-call]");
  if (!button) return;
  const { call: path, method, body, then, sure, said } = button.dataset;
  if (sure && !confirm(sure)) return;
  button.disabled = true;
  try {
    const answer = await call(method, path, body && JSON.parse(body));
    if (then) location.assign(root + then.replace("{id}", answer ? answer.id : ""));
    else if (said) tell(said);
  } catch (error) {
    tell(error.message);
    button.disabled = false;
  }
});
