"""The fields `input_storage` and `value_storage` of a job, and the bindings that they become."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.api.schemas.jobs import BindingsRequest
from app.api.schemas.requests import storage_of
from app.engine.types.storage import DeclaredStorage
from app.jobs.worker.child_request import bindings_of


def bindings(**storage: Any) -> Any:
    body = BindingsRequest.model_validate({"input_storage": storage})
    return bindings_of(json.loads(json.dumps(storage_of(body)))).storage


def test_declared_storage_types_reach_the_engine() -> None:
    assert bindings(x={"storage": "csr", "nnz": 5}) == {"x": DeclaredStorage("csr", 5)}
    assert bindings(x={"storage": "csr", "density": 0.5}) == {"x": DeclaredStorage("csr", None, 0.5)}
    assert bindings(x={"storage": "row_sparse", "rows": 0}) == {"x": DeclaredStorage("row_sparse", 0)}


def test_storage_types_of_values_reach_the_engine() -> None:
    body = BindingsRequest.model_validate({"value_storage": {"h": {"storage": "csr", "density": 0.02}}})
    found = bindings_of(json.loads(json.dumps(storage_of(body))))
    assert found.value_storage == {"h": DeclaredStorage("csr", density=0.02)}
    assert found.storage == {}


def test_a_request_without_them_is_what_it_was() -> None:
    assert storage_of(BindingsRequest()) == {}


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ({"storage": "csr"}, "state either 'nnz' or 'density'"),
        ({"storage": "csr", "nnz": 1, "density": 0.5}, "state either"),
        ({"storage": "csr", "rows": 1}, "not 'rows'"),
        ({"storage": "row_sparse", "nnz": 1}, "not 'nnz'"),
        ({"storage": "csr", "nnz": -1}, "greater than or equal to 0"),
        ({"storage": "csr", "density": 0}, "greater than 0"),
        ({"storage": "csr", "density": 1.5}, "less than or equal to 1"),
        ({"storage": "coo", "nnz": 1}, "csr"),
    ],
)
def test_declarations_that_say_nothing_are_refused(storage: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        bindings(x=storage)
