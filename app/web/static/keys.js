// A new key is shown once.
import { call, show } from "./api.js";

const form = document.getElementById("new-key");
const problem = document.querySelector(".problem");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.hidden = true;
  const body = { name: form.elements.name.value, scope: form.elements.scope.value };
  if (form.elements.owner.value) body.owner = form.elements.owner.value;
  if (form.elements.require_keys?.checked) body.require_keys = true;
  try {
    const made = await call("POST", "/v1/keys", body);
    document.getElementById("made-key").textContent = made.key;
    document.getElementById("made-login").value = made.key;
    document.getElementById("made").hidden = false;
    document.getElementById("made-key").focus();
    form.reset();
  } catch (error) {
    show(problem, error);
  }
});

document.getElementById("copy").addEventListener("click", async (event) => {
  const key = document.getElementById("made-key");
  try {
    await navigator.clipboard.writeText(key.textContent);
    event.target.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(key);
  }
});
