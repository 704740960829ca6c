// A description of a machine, as JSON.
import { Problem, call, root, show } from "./api.js";

const form = document.getElementById("new-target");
const problem = form.querySelector(".problem");

form.elements.file.addEventListener("change", async () => {
  const [file] = form.elements.file.files;
  if (file) form.elements.text.value = await file.text();
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.hidden = true;
  let body;
  try {
    body = JSON.parse(form.elements.text.value);
  } catch (error) {
    show(problem, new Problem({ detail: `This is no JSON: ${error.message}` }, 0));
    return;
  }
  try {
    await call("POST", "/v1/targets", body);
    location.assign(`${root}/targets`);
  } catch (error) {
    show(problem, error);
  }
});
