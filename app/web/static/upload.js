// A model is dropped: hashed here and there, scanned, inspected; then its page is shown.
import { call, make, pause, Problem, root, send, show, size } from "./api.js";

const drop = document.getElementById("drop");
const HASHED = 1 << 30; // byte; a larger file would have to be in memory as a whole

if (drop) {
  const file = document.getElementById("file");
  file.addEventListener("change", () => file.files[0] && take(file.files[0]));
  for (const kind of ["dragenter", "dragover"])
    addEventListener(kind, (e) => {
      e.preventDefault();
      drop.classList.add("over");
    });
  for (const kind of ["dragleave", "drop"])
    addEventListener(kind, (e) => {
      e.preventDefault();
      if (kind === "drop" || !e.relatedTarget) drop.classList.remove("over");
    });
  addEventListener("drop", (e) => e.dataTransfer.files[0] && take(e.dataTransfer.files[0]));
}

const $ = (selector) => drop.querySelector(selector);

async function take(file) {
  drop.classList.add("busy");
  $(".uploading").hidden = false;
  $(".problem").hidden = true;
  $(".upload-name").textContent = `${file.name}, ${size(file.size)}`;
  $(".sha-here").textContent = $(".sha-there").textContent = "–";
  $(".upload-state").textContent = "–";
  try {
    const limit = Number(drop.dataset.limit);
    if (limit && file.size > limit) throw new Problem({ detail: `The file has ${size(file.size)}, the service takes ${size(limit)}.` }, 413);
    if (!file.size) throw new Problem({ detail: "The file is empty." }, 422);
    const here = hash(file).then((text) => ($(".sha-here").textContent = text));
    const { status, body } = await send("/v1/models", file, (share) => ($("progress").value = share));
    const there = body.files[""];
    $(".sha-there").textContent = there;
    const mine = await here;
    if (mine.length === 64 && mine !== there)
      throw new Problem({ detail: "The file changed on its way: the hashes differ. Send it again." }, 0);
    if (status === 201) await call("PUT", `/v1/models/${body.id}/labels`, { labels: { name: file.name.slice(0, 255) } });
    $(".upload-state").textContent = "running";
    let model = body;
    while (model.state === "inspecting") {
      model = await call("GET", `/v1/models/${body.id}?wait=20`);
      if (model.state === "inspecting") await pause(200);
    }
    $(".upload-state").textContent = model.state;
    location.assign(`${root}/models/${body.id}`);
  } catch (error) {
    show($(".problem"), error);
    $(".problem").append(make("p", { class: "quiet" }, "Drop another file to try again."));
    drop.classList.remove("busy");
    $(".uploading").hidden = true;
    document.getElementById("file").value = "";
  }
}

async function hash(file) {
  if (!globalThis.crypto?.subtle || file.size > HASHED) return "told by the service only";
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return [...digest].map((b) => b.toString(16).padStart(2, "0")).join("");
}
