"""Predicted time of a step: the roofline model over the described machine.

Source: Williams, Waterman and Patterson, 2009, "Roofline: an insightful visual performance model".
"""

from app.engine.target import Target


def roofline(
    target: Target, *, flops: float, nbytes: float, efficiency: float = 0.8, threads: int = 1
) -> float:
    """Seconds for work of `flops` operations that moves `nbytes` through main memory.

    `efficiency` is the fraction of peak arithmetic that the implementation reaches. Traffic that
    fits the last cache is taken to move four times as fast as main memory.
    """
    cores = min(threads, target.cores)
    bandwidth = target.memories[0].bandwidth
    if target.caches and nbytes <= target.caches[-1]:
        bandwidth *= 4.0
    return target.launch + max(flops / (target.flops * cores * efficiency), nbytes / bandwidth)
