// A model is dropped: hashed here and there, scanned, inspected; then its page is shown.
import { call, make, pause, Problem, root, send, show, size } from "./api.js";

const drop = document.getElementById("drop");
const HASHED = 1 << 30; // byte; a larger file would have to be in memory as a whole

if (drop) {
  const file = document.getElementById("file");
  file.addEventListener("change", () => file.files[0] && take([...file.files]));
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
  addEventListener("drop", (e) => e.dataTransfer.files[0] && take([...e.dataTransfer.files]));
}

const $ = (selector) => drop.querySelector(selector);

/** The graph among the files: the one that is called so, or the only one. */
function graphOf(files) {
  const graphs = files.length === 1 ? files : files.filter((f) => /(\.(onnx|pb)|-symbol\.json)$/i.test(f.name));
  if (graphs.length === 1) return graphs[0];
  const found = files.map((f) => f.name).join(", ");
  throw new Problem({ detail: `Expected one .onnx file and its external data, or one -symbol.json and its parameters, found ${found}.` }, 422);
}

async function take(files) {
  drop.classList.add("busy");
  $(".uploading").hidden = false;
  $(".problem").hidden = true;
  $(".sha-here").textContent = $(".sha-there").textContent = "–";
  $(".upload-state").textContent = "–";
  try {
    const limit = Number(drop.dataset.limit);
    for (const { name, size: bytes } of files) {
      if (limit && bytes > limit) throw new Problem({ detail: `${name} has ${size(bytes)}, the service takes ${size(limit)}.` }, 413);
      if (!bytes) throw new Problem({ detail: `${name} is empty.` }, 422);
    }
    const file = graphOf(files);
    const name = encodeURIComponent(file.name.slice(0, 255));
    const others = files.filter((f) => f !== file);
    const sum = files.reduce((bytes, f) => bytes + f.size, 0);
    let sent = 0;
    $(".upload-name").textContent = [file, ...others].map((f) => `${f.name}, ${size(f.size)}`).join("; ");
    const upload = async (path, f) => {
      const answer = await send(path, f, (share) => ($("progress").value = (sent + share * f.size) / sum));
      sent += f.size;
      return answer;
    };
    const here = hash(file).then((text) => ($(".sha-here").textContent = text));
    let body;
    if (others.length) {
      const external = {};
      for (const f of others) external[f.name] = (await upload("/v1/blobs", f)).body.sha256;
      const model = (await upload("/v1/blobs", file)).body.sha256;
      body = await call("POST", `/v1/models?name=${name}`, { model, external_data: external });
    } else body = (await upload(`/v1/models?name=${name}`, file)).body;
    const there = body.files[""];
    $(".sha-there").textContent = there;
    const mine = await here;
    if (mine.length === 64 && mine !== there)
      throw new Problem({ detail: "The file changed on its way: the hashes differ. Send it again." }, 0);
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
