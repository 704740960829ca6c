// The form that asks for an optimization, and what a check finds.
import { call, make, pause, root, show } from "./api.js";

const waiting = document.getElementById("inspecting");
if (waiting)
  (async () => {
    for (;;) {
      const model = await call("GET", `/v1/models/${waiting.dataset.model}?wait=20`);
      if (model.state !== "inspecting") return location.reload();
      await pause(500);
    }
  })();

const rename = document.getElementById("rename");
rename?.addEventListener("click", () => {
  const heading = document.querySelector("h1");
  const field = make("input", { value: rename.dataset.name, maxlength: 255, required: "", "aria-label": "Name of the model" });
  const said = make("div", { class: "problem", role: "alert", hidden: "" });
  const naming = make("form", { class: "row naming" }, field, make("button", { class: "primary" }, "Save"), said);
  naming.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await call("PATCH", `/v1/models/${rename.dataset.model}`, { name: field.value.trim() });
      location.reload();
    } catch (error) {
      show(said, error);
    }
  });
  naming.addEventListener("keydown", (event) => event.key === "Escape" && location.reload());
  heading.replaceWith(naming);
  rename.remove();
  field.select();
});

const form = document.getElementById("order");
if (form) {
  const problem = form.querySelector(".problem");
  const found = form.querySelector(".found");
  const buttons = form.querySelectorAll(".actions button");

  const asked = () => {
    const options = {};
    for (const field of form.querySelectorAll("[data-option]"))
      options[field.name] =
        field.type === "checkbox" ? field.checked : field.dataset.option === "number" ? Number(field.value) : field.value;
    const budget = form.memory_budget.value.trim();
    if (budget) {
      const bytes = Math.round(Number(budget) * Number(form.memory_unit.value));
      if (!(bytes >= 1)) throw wrong(form.memory_budget, "Memory budget: expected a number above 0.");
      options.memory_budget = bytes;
    }
    const share = form.error_budget.value.trim();
    if (share) {
      const part = Number(share) / 100;
      if (!(part > 0 && part <= 1)) throw wrong(form.error_budget, "Error budget: expected a percentage above 0.");
      options.error_budget = part;
    }
    options.backends = [...form.querySelectorAll("[name=backend]:checked")].map((b) => b.value);
    const shapes = {};
    for (const field of form.querySelectorAll("[data-free]")) {
      const text = field.value.trim();
      if (!text) continue; // the service tells what it needs
      const dims = text.split(/[\s,×x]+/).filter(Boolean).map(Number);
      const rank = field.value.split(",").length;
      if (!dims.length || dims.some((d) => !Number.isInteger(d) || d < 0) || (text.includes(",") && dims.length < rank))
        throw wrong(field, `Input ${field.dataset.input}: choose each dimension, such as 1, 3, 224, 224.`);
      shapes[field.dataset.input] = dims;
    }
    return { options, input_shapes: shapes };
  };

  const wrong = (field, message) => {
    field.classList.add("wrong");
    field.setAttribute("aria-invalid", "true");
    field.focus();
    return new Error(message);
  };

  const targets = () => {
    const names = [...form.querySelectorAll("[name=target]:checked")].map((t) => t.value);
    if (!names.length) throw wrong(form.querySelector("[name=target]"), "Tick at least one target.");
    return names;
  };

  const busy = async (work) => {
    for (const field of form.querySelectorAll(".wrong")) {
      field.classList.remove("wrong");
      field.removeAttribute("aria-invalid");
    }
    problem.hidden = found.hidden = true;
    buttons.forEach((b) => (b.disabled = true));
    try {
      await work();
    } catch (error) {
      show(problem, error);
      problem.scrollIntoView({ block: "nearest" });
    } finally {
      buttons.forEach((b) => (b.disabled = false));
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(async () => {
      const body = { model: form.dataset.model, targets: targets(), ...asked(), reuse: !form.fresh.checked, labels: {} };
      const label = form.label.value.trim();
      if (label) {
        const [name, ...value] = label.split("=");
        body.labels[name.trim()] = value.join("=").trim();
      }
      const answer = await call("POST", "/v1/jobs", body);
      location.assign(answer.jobs ? `${root}/jobs?group=${answer.id}` : `${root}/jobs/${answer.id}`);
    });
  });

  document.getElementById("check").addEventListener("click", () =>
    busy(async () => {
      const body = asked();
      const rows = [];
      for (const target of targets()) {
        found.replaceChildren(`Checking for ${target}…`);
        found.hidden = false;
        const answer = await call("POST", `/v1/models/${form.dataset.model}/validate`, { ...body, target });
        for (const p of answer.problems) rows.push({ target, ...p });
      }
      found.hidden = rows.length > 0;
      found.replaceChildren("Nothing would stop it: it loads, its inputs fit, and a plan was made.");
      if (!rows.length) return;
      problem.replaceChildren(
        make("p", {}, make("strong", {}, "This would stop it:")),
        make("ul", {}, ...rows.map((r) => make("li", {}, make("b", {}, r.target), " ", make("code", {}, r.code), " ", r.detail))),
      );
      problem.hidden = false;
      for (const r of rows) {
        const name = r.pointer.startsWith("/input_shapes/") ? r.pointer.slice(14) : null;
        form.querySelectorAll("[data-input]").forEach((f) => f.dataset.input === name && wrong(f, ""));
      }
    }),
  );
}
