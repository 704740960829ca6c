"""Requests of one model by their headers, of which clients send one again and again; see `oip_codec`."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.engine.types.sparse_array import SparseArray
from app.jobs.worker.engine_protocol import Port
from app.serving.oip_codec import Form, Inference, parse

_LONGEST_KNOWN = 4096  # byte of a header that is remembered
_MOST_KNOWN = 64  # such headers


class Forms:
    """Reads the requests of one model; clients send one header again and again, which is read once."""

    def __init__(
        self, inputs: Sequence[Port], outputs: Sequence[Port], fixed: Mapping[str, float | int | bool]
    ) -> None:
        self._model = (inputs, outputs, fixed)
        self._known: dict[tuple[bytes, int], Form] = {}

    def parse(self, body: memoryview, header_nbytes: int) -> Inference:
        """As the function `parse`."""
        if not 0 < header_nbytes <= min(_LONGEST_KNOWN, len(body)):
            return parse(body, header_nbytes, *self._model)
        key = bytes(body[:header_nbytes]), len(body)
        known = self._known.get(key)
        if known is not None:
            return known.filled(body)
        inference = parse(body, header_nbytes, *self._model)
        form = _form(inference, header_nbytes, len(body))
        if form is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = form
        return inference


def _form(inference: Inference, header_nbytes: int, nbytes: int) -> Form | None:
    """Key of requests of one form; None where numbers decided if the request fits the model.

    So they did where a tensor came as JSON or for an input that is fixed, which shows in the sizes, and
    for those of type BOOL, of which each byte is looked at.
    """
    tensors, begin = [], header_nbytes
    for name, array in inference.inputs.items():
        if isinstance(array, SparseArray):
            return None
        tensors.append((name, array.dtype, array.shape, array.size, begin))
        begin += array.nbytes
    if begin != nbytes or any(dtype == np.bool_ for _, dtype, _, _, _ in tensors):
        return None
    return Form(inference.id, tuple(tensors), inference.outputs, inference.seconds)
