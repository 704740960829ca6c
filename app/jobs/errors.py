"""Errors around a job, with stable codes; HTTP status codes are in `app.api.http.errors`."""

from app.engine.types.errors import CodedError


class ServiceError(CodedError, code="service-error"):
    """A request that cannot be served as it is.

    `pointer` is a JSON pointer into the request (`/targets/0`), empty when the whole is at fault.
    """


class NotFoundError(ServiceError, code="not-found"):
    """Something named by the request is not there."""


class ModelNotFoundError(NotFoundError, code="model-not-found"):
    """No model of that id."""


class JobNotFoundError(NotFoundError, code="job-not-found"):
    """No job of that id."""


class JobGroupNotFoundError(NotFoundError, code="job-group-not-found"):
    """No job group of that id."""


class ArtifactNotFoundError(NotFoundError, code="artifact-not-found"):
    """The job has no artifact of that name, or not yet."""


class DeploymentNotFoundError(NotFoundError, code="deployment-not-found"):
    """Nothing is deployed under that name."""


class NodeNotFoundError(NotFoundError, code="node-not-found"):
    """No step of the job's plan computes a node of that name."""


class BlobNotFoundError(NotFoundError, code="blob-not-found"):
    """No blob of that hash: it was never uploaded, or nothing referred to it for too long."""


class TargetNotFoundError(NotFoundError, code="target-not-found"):
    """No target of that name."""


class CoreOperatorNotFoundError(NotFoundError, code="core-operator-not-found"):
    """No core operator of that name."""


class KeyNotFoundError(NotFoundError, code="key-not-found"):
    """No key of that id, or it was revoked."""


class ConflictError(ServiceError, code="conflict"):
    """The request does not fit the present state."""


class JobNotFinishedError(ConflictError, code="job-not-finished"):
    """The job must reach a terminal state first."""


class ModelInUseError(ConflictError, code="model-in-use"):
    """Jobs that are not finished need the model."""


class DeploymentExistsError(ConflictError, code="deployment-exists"):
    """Another job is deployed as that version of the name."""


class NotDeployableError(ConflictError, code="not-deployable"):
    """The job has no result that this machine could run."""


class TargetExistsError(ConflictError, code="target-exists"):
    """Another description has that name already."""


class TooLargeError(ServiceError, code="body-too-large"):
    """A body exceeds a limit."""


class QuotaError(TooLargeError, code="quota-exceeded"):
    """The blobs of the key's owner would exceed the quota."""


class TooManyError(ServiceError, code="too-many"):
    """The key has as many unfinished jobs, open requests or deployments as it may have."""


class StorageFullError(ServiceError, code="storage-full"):
    """The disk of the service is full, or nearly."""


class StoreOutageError(ServiceError, code="store-unavailable"):
    """The store of blobs does not answer."""


class UnauthorizedError(ServiceError, code="key-required"):
    """The request needs a key, and has none that is valid."""


class ForbiddenError(ServiceError, code="forbidden"):
    """The key's scope does not include the operation, or the request comes from a foreign page."""


class HashMismatchError(ServiceError, code="hash-mismatch"):
    """The bytes are not those that the hash names."""


class RequestError(ServiceError, code="request-invalid"):
    """A request that contradicts itself or a limit of the service."""


class IdempotencyKeyReusedError(ServiceError, code="idempotency-key-reused"):
    """The key came before, with another body."""


class InvalidModelError(ServiceError, code="model-invalid"):
    """The model was found invalid when it was inspected; `code` tells how."""


class OperatorFailedError(ServiceError, code="operator-failed"):
    """The operator could not be run; `code` tells why."""


class OperationFailedError(OperatorFailedError, code="operation-failed"):
    """Nothing could be made of the model, or read in it; `code` tells why."""


class NoAnswerError(ServiceError, code="no-answer"):
    """No worker answered in time."""
