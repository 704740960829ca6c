"""Errors around a job, with stable codes; HTTP status codes are in `app.api.http.errors`."""

from typing import ClassVar


class ServiceError(Exception):
    """A request that cannot be served as it is.

    `pointer` is a JSON pointer into the request (`/targets/0`), empty when the whole is at fault.
    """

    code: ClassVar[str] = "service-error"

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer


class NotFoundError(ServiceError):
    """Something named by the request is not there."""

    code = "not-found"


class ModelNotFoundError(NotFoundError):
    """No model of that id."""

    code = "model-not-found"


class JobNotFoundError(NotFoundError):
    """No job of that id."""

    code = "job-not-found"


class JobGroupNotFoundError(NotFoundError):
    """No job group of that id."""

    code = "job-group-not-found"


class ArtifactNotFoundError(NotFoundError):
    """The job has no artifact of that name, or not yet."""

    code = "artifact-not-found"


class DeploymentNotFoundError(NotFoundError):
    """Nothing is deployed under that name."""

    code = "deployment-not-found"


class NodeNotFoundError(NotFoundError):
    """No step of the job's plan computes a node of that name."""

    code = "node-not-found"


class BlobNotFoundError(NotFoundError):
    """No blob of that hash: it was never uploaded, or nothing referred to it for too long."""

    code = "blob-not-found"


class TargetNotFoundError(NotFoundError):
    """No target of that name."""

    code = "target-not-found"


class KeyNotFoundError(NotFoundError):
    """No key of that id, or it was revoked."""

    code = "key-not-found"


class ConflictError(ServiceError):
    """The request does not fit the present state."""

    code = "conflict"


class JobNotFinishedError(ConflictError):
    """The job must reach a terminal state first."""

    code = "job-not-finished"


class ModelInUseError(ConflictError):
    """Jobs that are not finished need the model."""

    code = "model-in-use"


class DeploymentExistsError(ConflictError):
    """Another job is deployed as that version of the name."""

    code = "deployment-exists"


class NotDeployableError(ConflictError):
    """The job has no result that this machine could run."""

    code = "not-deployable"


class TargetExistsError(ConflictError):
    """Another description has that name already."""

    code = "target-exists"


class TooLargeError(ServiceError):
    """A body exceeds a limit."""

    code = "body-too-large"


class QuotaError(TooLargeError):
    """The blobs of the key's owner would exceed the quota."""

    code = "quota-exceeded"


class TooManyError(ServiceError):
    """The key has as many unfinished jobs, open requests or deployments as it may have."""

    code = "too-many"


class StorageFullError(ServiceError):
    """The disk of the service is full, or nearly."""

    code = "storage-full"


class StoreOutageError(ServiceError):
    """The store of blobs does not answer."""

    code = "store-unavailable"


class UnauthorizedError(ServiceError):
    """The request needs a key, and has none that is valid."""

    code = "key-required"


class ForbiddenError(ServiceError):
    """The key's scope does not include the operation, or the request comes from a foreign page."""

    code = "forbidden"


class HashMismatchError(ServiceError):
    """The bytes are not those that the hash names."""

    code = "hash-mismatch"


class RequestError(ServiceError):
    """A request that contradicts itself or a limit of the service."""

    code = "request-invalid"


class IdempotencyKeyReusedError(ServiceError):
    """The key came before, with another body."""

    code = "idempotency-key-reused"


class InvalidModelError(ServiceError):
    """The model was found invalid when it was inspected; `code` tells how."""

    code = "model-invalid"

    def __init__(self, message: str, *, code: str, pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.code = code  # type: ignore[misc]  # the code of the inspection, not of the class


class OperatorFailedError(ServiceError):
    """The operator could not be run; `code` tells why."""

    code = "operator-failed"

    def __init__(self, message: str, *, code: str, pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.code = code  # type: ignore[misc]  # the code of the failure, not of the class


class OperationFailedError(OperatorFailedError):
    """Nothing could be made of the model, or read in it; `code` tells why."""

    code = "operation-failed"


class NoAnswerError(ServiceError):
    """No worker answered in time."""

    code = "no-answer"
