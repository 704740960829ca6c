"""The description of `/v2` in the OpenAPI document, by hand: the bodies are the protocol's, not ours."""

from typing import Any

from app.api.http.auth_middleware import PUBLIC, scope_of
from app.serving.oip_codec import DATATYPES

Json = dict[str, Any]

_STRING: Json = {"type": "string"}
_SHAPE: Json = {"type": "array", "items": {"type": "integer"}}
_PARAMETERS: Json = {"type": "object", "description": "Such as `binary_data_size`, `binary_data`."}
_DATA: Json = {"type": "array", "items": {}, "description": "Numbers, flat or nested as the shape says."}
_DATATYPE: Json = {"type": "string", "enum": list(DATATYPES)}
_TENSOR: Json = {"name": _STRING, "datatype": _DATATYPE, "shape": _SHAPE}


def _object(properties: Json, required: list[str], description: str, example: Json | None = None) -> Json:
    found: Json = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "description": description,
    }
    return found | ({"examples": [example]} if example else {})


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


_TENSOR_KEYS = ["name", "datatype", "shape"]
SCHEMAS: Json = {
    "InferenceError": _object({"error": _STRING}, ["error"], "A failure, as the protocol has it."),
    "ServerMetadata": _object(
        {"name": _STRING, "version": _STRING, "extensions": {"type": "array", "items": _STRING}},
        ["name", "version", "extensions"],
        "What the server is.",
    ),
    "ServerLive": _object({"live": {"type": "boolean"}}, ["live"], "It answers."),
    "ServerReady": _object({"ready": {"type": "boolean"}}, ["ready"], "All models answer."),
    "ModelReady": _object(
        {"name": _STRING, "ready": {"type": "boolean"}}, ["name", "ready"], "The model answers."
    ),
    "TensorMetadata": _object(_TENSOR, _TENSOR_KEYS, "A tensor; -1 for dimensions that differ."),
    "ModelMetadata": _object(
        {
            "name": _STRING,
            "versions": {"type": "array", "items": _STRING},
            "platform": _STRING,
            "inputs": _list("TensorMetadata"),
            "outputs": _list("TensorMetadata"),
        },
        ["name", "versions", "platform", "inputs", "outputs"],
        "What a model takes and returns.",
    ),
    "InputTensor": _object(
        {**_TENSOR, "parameters": _PARAMETERS, "data": _DATA}, _TENSOR_KEYS, "A tensor that is given."
    ),
    "WantedOutput": _object(
        {"name": _STRING, "parameters": _PARAMETERS}, ["name"], "A tensor that is wanted."
    ),
    "InferenceRequest": _object(
        {
            "id": _STRING,
            "parameters": _PARAMETERS,
            "inputs": _list("InputTensor"),
            "outputs": _list("WantedOutput"),
        },
        ["inputs"],
        "Inputs, and which outputs are wanted; all without `outputs`.",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]},
    ),
    "OutputTensor": _object(
        {**_TENSOR, "parameters": _PARAMETERS, "data": _DATA}, _TENSOR_KEYS, "A tensor that was computed."
    ),
    "InferenceResponse": _object(
        {"id": _STRING, "model_name": _STRING, "model_version": _STRING, "outputs": _list("OutputTensor")},
        ["model_name", "model_version", "outputs"],
        "The outputs.",
    ),
}

_FAILURES = {
    400: "The request does not fit the model, or the model is not ready.",
    401: "The request needs a key, and has none that is valid.",
    403: "The key's scope does not include the operation, or the request comes from a foreign page.",
    404: "No model, or no version, of that name.",
    408: "The body did not come in time.",
    411: "The size of the body was not announced.",
    413: "The body exceeds the limit.",
    415: "The body is compressed.",
    429: "The key has as many open requests as it may have.",
    500: "The model failed.",
    503: "The model is not ready or has enough to do: try again.",
    504: "The inference took longer than its limit.",
}
_MODEL_FAILURES = (400, 404)
_LIVE, _READY = "/v2/health/live", "/v2/health/ready"
_HEADER = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Bytes of the JSON at the start of the body, where binary tensor data follow it.",
}
_PATH = {"in": "path", "required": True}
_NAME = {"name": "name", **_PATH, "schema": {**_STRING, "maxLength": 63, "examples": ["resnet50"]}}
_VERSION = {"name": "version", **_PATH, "schema": {**_STRING, "maxLength": 20, "examples": ["1"]}}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


def _operation(
    path: str,
    identifier: str,
    summary: str,
    description: str,
    answer: str,
    failures: tuple[int, ...],
    method: str = "get",
) -> Json:
    scope = scope_of(method.upper(), path)
    if scope != PUBLIC:
        failures = tuple(sorted({*failures, 401, 403, 429, 503}))
    found: Json = {
        "tags": ["inference"],
        "operationId": identifier,
        "summary": summary,
        "description": description,
        "responses": {"200": {"description": summary, "content": _json(answer)}}
        | {str(s): {"description": _FAILURES[s], "content": _json("InferenceError")} for s in failures},
    }
    parameters = [p for p in (_NAME, _VERSION) if f"{{{p['name']}}}" in path]
    if parameters:
        found["parameters"] = parameters
    if scope != PUBLIC:
        found |= {"security": [{"key": []}, {}], "x-scope": scope}
    return found


def _json(schema: str) -> Json:
    return {"application/json": {"schema": _ref(schema)}}


def _inference(path: str, identifier: str) -> Json:
    told = "Tensors as JSON, or as bytes after the JSON; the answer has binary data where it is asked for."
    found = _operation(
        path, identifier, "Run a model", told, "InferenceResponse", tuple(_FAILURES), method="post"
    )
    found["parameters"].append(_HEADER)
    body = _json("InferenceRequest") | {"application/octet-stream": _BYTES}
    found["requestBody"] = {"required": True, "content": body}
    found["responses"]["200"]["content"]["application/octet-stream"] = _BYTES
    return found


def paths() -> Json:
    """The operations by address."""
    looks: list[tuple[str, str, str, str, str, tuple[int, ...]]] = [
        ("/v2", "getServer", "What is this?", "Name, version, extensions.", "ServerMetadata", ()),
        (_LIVE, "getServerLive", "Is the server alive?", "The process answers.", "ServerLive", (503,)),
        (
            _READY,
            "getServerReady",
            "Are all models ready?",
            "All that is deployed.",
            "ServerReady",
            (400, 503),
        ),
    ]
    runs = []
    for path, kind, which in (
        ("/v2/models/{name}", "Model", "The latest version."),
        ("/v2/models/{name}/versions/{version}", "ModelVersion", "One version."),
    ):
        metadata = (f"get{kind}Metadata", "Look at a deployed model", which, "ModelMetadata")
        ready = (f"get{kind}Ready", "Is a model ready?", which, "ModelReady")
        looks += [(path, *metadata, _MODEL_FAILURES), (f"{path}/ready", *ready, _MODEL_FAILURES)]
        runs.append((f"{path}/infer", f"infer{kind}"))
    found = {row[0]: {"get": _operation(*row)} for row in looks}
    return found | {path: {"post": _inference(path, identifier)} for path, identifier in runs}
