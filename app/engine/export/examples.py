"""Examples to copy, of each form of a library, with the model's own names and shapes."""

import json
from collections.abc import Mapping
from typing import Any

_C = """#include <stdio.h>
#include "model.h"

int main(void) {{
    stowplan *model;
    stowplan_status status = stowplan_create(&model, 0, STOWPLAN_COPY_WEIGHTS);
    if (status) return fprintf(stderr, "%s\\n", stowplan_message(status)), 1;
    /* Fill stowplan_input_memory(model, 0), which has stowplan_input(0)->bytes. */
    status = stowplan_run(model);
    /* Read stowplan_output_memory(model, 0). */
    stowplan_destroy(model);
    return status;
}}
/* cc main.c -L. -l:model.so -Wl,-rpath,'$ORIGIN' -o main */
"""
_STATIC = """#include <stdio.h>
#include "{identifier}.h"

int main(void) {{
{fills}
    int status = {identifier}_run();
    /* Read {reads}. */
    return status;
}}
/* cc main.c {identifier}.o -o main; sections and bytes are in the header */
"""
_WHEEL = """# pip install {filename}
import numpy as np
import {module}

session = {module}.InferenceSession()  # the interface of onnxruntime.InferenceSession
outputs = session.run(None, {{
{numpy}
}})
"""
_PYTHON = """import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.register_custom_ops_library("./model.so")
session = onnxruntime.InferenceSession({graph}, options)
outputs = session.run(None, {{
{numpy}
}})
"""
_C_SHARP = """using Microsoft.ML.OnnxRuntime;

using var options = new SessionOptions();
options.RegisterCustomOpLibrary("./model.so");
using var session = new InferenceSession({graph}, options);
// Inputs and outputs as before: {names}
"""
_JAVA = """import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtSession;

OrtEnvironment environment = OrtEnvironment.getEnvironment();
OrtSession.SessionOptions options = new OrtSession.SessionOptions();
options.registerCustomOpLibrary("./model.so");
OrtSession session = environment.createSession({graph}, options);
// Inputs and outputs as before: {names}
"""
# By kind of export: the language and its text.
_TEXTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "c": (("C", _C),),
    "wheel": (("Python", _WHEEL),),
    "static": (("C", _STATIC),),
    "ort": (("Python", _PYTHON), ("C#", _C_SHARP), ("Java", _JAVA)),
}
# Others have numpy's name; it has no bfloat16, whose bits are given.
_NUMPY = {"float": "float32", "double": "float64", "bool": "bool_", "bfloat16": "uint16"}


def examples(kind: str, told: Mapping[str, object], filename: str) -> dict[str, str]:
    """Examples of a kind of export by language.

    Args:
        kind: of the option `export`.
        told: description of the library.
        filename: that it is kept under.
    """
    inputs, outputs = told["inputs"], told["outputs"]
    assert isinstance(inputs, list)
    assert isinstance(outputs, list)
    name = str(told.get("identifier", ""))
    facts = {
        "identifier": name,
        "fills": "\n".join(
            f"    /* Fill {name.upper()}_INPUT_{n}: {each['dtype']}{each['shape']}. */"
            for n, each in enumerate(inputs)
        ),
        "reads": ", ".join(f"{name.upper()}_OUTPUT_{n}" for n in range(len(outputs))),
        "filename": filename,
        "module": filename.partition("-")[0],
        "graph": json.dumps(graph_name(told)),
        "names": ", ".join(json.dumps(each["name"]) for each in inputs),
        "numpy": "\n".join(map(_array, inputs)),
    }
    return {language: text.format_map(facts) for language, text in _TEXTS[kind]}


def graph_name(told: Mapping[str, object]) -> str:
    """File name of the graph of one operator."""
    return f"{str(told['name']).replace('/', '-')}.stowplan.onnx"


def _array(told: Mapping[str, Any]) -> str:
    kind = _NUMPY.get(told["dtype"], told["dtype"])
    return f"    {json.dumps(told['name'])}: np.zeros({tuple(told['shape'])}, np.{kind}),"
