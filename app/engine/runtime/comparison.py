"""A program beside other runtimes, in figures and in words: reports, pages and the command line lead with it.

The words are made here alone; whoever shows a job shows them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.engine.report import units
from app.engine.runtime.peers import Rival
from app.engine.runtime.verify import Difference

Json: TypeAlias = dict[str, Any]
EQUAL = 5e-3  # of a ratio: less than what its two digits show


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of activations: the plan's, what no plan of its steps can go below, and onnxruntime's high water.

    `unmeasured` is why there is no high water; `unplanned` counts values and bodies that the bytes leave out.
    """

    nbytes: int
    lower_bound: int
    proved: bool
    onnxruntime: int | None = None
    unmeasured: str = ""
    unplanned: int = 0

    @property
    def gap(self) -> float:
        """How far above the bound, as a fraction of it."""
        return self.nbytes / self.lower_bound - 1 if self.lower_bound else 0.0


def comparison(seconds: float, kind: str, rivals: Sequence[Rival], memory: Memory, reason: str = "") -> Json:
    """The figures and the sentences of a job.

    Args:
        seconds: of a run of the program.
        kind: of these seconds, `measured` or `predicted`.
        rivals: peers in order of interest.
        memory: of the activations.
        reason: why nothing was measured; empty where it was.
    """
    peers = [_peer(rival) for rival in rivals]
    beaten = [peer for peer in peers if peer["ratio"] is not None]
    why = reason or "; ".join(f"{p['name']} not measured: {p['unavailable']}" for p in peers)
    run = _line("time", f"{text(units.duration(seconds))} a run, {kind}", f"({why})" if why else "")
    # Speed first where it was measured beside a peer, else memory, which is known of any plan.
    speed = [_speed(peer) for peer in beaten]
    lines = [*speed, _memory(memory)] if beaten else [_memory(memory), run]
    return {
        "kind": kind,
        "seconds": seconds,
        "peers": peers,
        "memory": {
            "bytes": memory.nbytes,
            "lower_bound": memory.lower_bound,
            "proved": memory.proved,
            "gap": memory.gap,
            "onnxruntime": memory.onnxruntime,
            "ratio": memory.nbytes / memory.onnxruntime if memory.onnxruntime else None,
            "unavailable": memory.unmeasured,
        },
        "lines": lines,
        "sentence": lines[0]["text"],
        "notes": [f"{p['name']}: {p['unavailable']}" for p in peers if beaten and p["unavailable"]],
    }


def _line(about: str, head: str, rest: str, tone: str = "") -> Json:
    """A sentence and its two parts; the first may stand alone. The tone is `good`, `bad` or neither."""
    joint = "" if not rest else " " if rest.startswith("(") else ", "
    return {"about": about, "head": head, "rest": rest, "text": f"{head}{joint}{rest}", "tone": tone}


def _peer(rival: Rival) -> Json:
    worst = max(rival.differences, key=_excess, default=None)
    return {
        "name": rival.name,
        "version": rival.version,
        "ours": rival.ours.p50 if rival.ours else None,
        "seconds": rival.samples.p50 if rival.samples else None,
        "ratio": rival.ratio,
        "same_answer": None if rival.unlike or worst is None else worst.ok,
        "difference": worst.max_rel if worst else None,
        "allowed": worst.tolerance if worst else None,
        "unlike": rival.unlike,
        "unavailable": rival.reason,
    }


def _excess(difference: Difference) -> tuple[float, float]:
    """How near to its tolerance a difference is; ties by the difference itself."""
    share = difference.max_rel / difference.tolerance if difference.tolerance else difference.max_rel
    return share, difference.max_rel


def _speed(peer: Mapping[str, Any]) -> Json:
    times = f"({text(units.duration(peer['ours']))}, {text(units.duration(peer['seconds']))})"
    same = peer["same_answer"]
    tone = "bad" if same is False else "good" if same and peer["ratio"] >= 1 + EQUAL else ""
    return _line("speed", f"{peer['ratio']:.2f}x {peer['name']}'s speed", f"{times}, {_answer(peer)}", tone)


def _answer(peer: Mapping[str, Any]) -> str:
    if peer["same_answer"] is None:
        return f"answers not compared ({peer['unlike'] or 'the model has no outputs'})"
    how = (
        f"largest difference {peer['difference']:.1e} of the output's maximum, {peer['allowed']:.0e} allowed"
    )
    return f"{'same' if peer['same_answer'] else 'another'} answer ({how})"


def _memory(memory: Memory) -> Json:
    least = "proved least" if memory.proved else f"at most {memory.gap:.1%} above the least"
    if memory.unplanned:
        least = f"without {memory.unplanned} dynamic values or bodies that are outside of the plan"
    told = f"{least} (bound {text(units.size(memory.lower_bound))})"
    tone = "good" if memory.proved else ""
    if memory.onnxruntime:
        ratio = memory.nbytes / memory.onnxruntime
        told = f"{ratio:.2f}x of onnxruntime's high water ({text(units.size(memory.onnxruntime))}), {told}"
    elif memory.unmeasured:
        told = f"{told}; onnxruntime's not measured: {memory.unmeasured}"
    return _line("memory", f"{text(units.size(memory.nbytes))} of activations", told, tone)


def text(number: str) -> str:
    """A number of `units` for terminals and searches: with a plain space."""
    return number.replace(units.NBSP, " ")
