// The report: the graph at once, the memory map when it comes into view.
import { root, show } from "./api.js";
import { openGraph } from "./graph.js";

const job = document.getElementById("graph").dataset.job;
const artifact = async (name) => {
  const answer = await fetch(`${root}/v1/jobs/${job}/artifacts/${name}`);
  if (!answer.ok) throw new Error(`${name}: the service answered ${answer.status}`);
  return answer.json();
};

const loaded = document.getElementById("canvas") ? openGraph(job, artifact) : Promise.resolve(null);
loaded.catch((error) => (document.getElementById("drawing").textContent = error.message));

const map = document.getElementById("map");
if (map)
  new IntersectionObserver(async ([entry], observer) => {
    if (!entry.isIntersecting) return;
    observer.disconnect();
    try {
      const [{ drawMemory }, memory, graph] = await Promise.all([
        import("./memory.js"),
        artifact("memory.json"),
        loaded.catch(() => null),
      ]);
      drawMemory(map, memory, graph ? graph.values : {});
    } catch (error) {
      map.classList.remove("tall");
      show(map, error);
    }
  }, { rootMargin: "200px" }).observe(map);
