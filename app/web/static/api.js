// Requests to the service, and its problems.
export const root = document.documentElement.dataset.root;

export class Problem extends Error {
  constructor(body, status) {
    super(body.detail || body.title || `the service answered ${status}`);
    this.body = body;
    this.status = status;
  }
}

const problemOf = (text, status) => {
  try {
    return new Problem(JSON.parse(text), status);
  } catch {
    return new Problem({ detail: `the service answered ${status}` }, status);
  }
};

export async function call(method, path, body) {
  const how = { method, headers: { accept: "application/json" } };
  if (body !== undefined) {
    how.body = JSON.stringify(body);
    how.headers["content-type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(root + path, how);
  } catch {
    throw new Problem({ detail: "The service does not answer. Is it running?" }, 0);
  }
  const text = await answer.text();
  if (!answer.ok) throw problemOf(text, answer.status);
  return text ? JSON.parse(text) : null;
}

/** Send a file as it is; `told` gets the share that is sent. */
export function send(path, file, told) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("POST", root + path);
    request.setRequestHeader("content-type", "application/octet-stream");
    request.upload.onprogress = (e) => e.lengthComputable && told(e.loaded / e.total);
    request.onload = () =>
      request.status < 300
        ? done({ status: request.status, body: JSON.parse(request.responseText) })
        : failed(problemOf(request.responseText, request.status));
    request.onerror = () => failed(new Problem({ detail: "The upload was broken off." }, 0));
    request.send(file);
  });
}

/** An element with text, never markup: names come from strangers' models. */
export function make(tag, { class: classes, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

export function show(place, error) {
  const { body = {} } = error;
  const rows = (body.errors || []).map((e) =>
    make("li", {}, make("code", {}, e.pointer), " ", e.message),
  );
  place.replaceChildren(
    make("p", {}, make("strong", {}, error.message)),
    rows.length > 1 || (rows.length && body.errors[0].message !== error.message)
      ? make("ul", {}, ...rows)
      : "",
    body.code ? make("p", { class: "quiet" }, make("code", {}, body.code)) : "",
  );
  place.hidden = false;
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const SPACE = "\u00a0";

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1e4) return `${bytes}${SPACE}B`;
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(2)}${SPACE}GB`;
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(2)}${SPACE}MB` : `${(bytes / 1e3).toFixed(1)}${SPACE}kB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (!seconds) return "0";
  const units = [["s", 1], ["ms", 1e3], ["µs", 1e6], ["ns", 1e9]];
  const [unit, scale] = units.find(([, s]) => seconds * s >= 1) || units[3];
  return `${Number((seconds * scale).toPrecision(3))}${SPACE}${unit}`;
}

/** A square of a colour, for legends. */
export function swatch(fill) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("viewBox", "0 0 12 12");
  for (const [k, v] of Object.entries({ width: 12, height: 12, fill })) rect.setAttribute(k, v);
  svg.append(rect);
  return svg;
}
