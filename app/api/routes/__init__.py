"""Endpoints, one file a resource."""

from app.api.routes import (
    artifacts,
    deployments,
    derived_models,
    groups,
    jobs,
    keys,
    memory_plans,
    metrics,
    models,
    operators,
    system,
    targets,
)

_RESOURCES = (
    models,
    derived_models,
    targets,
    jobs,
    groups,
    deployments,
    artifacts,
    memory_plans,
    operators,
    keys,
)
ROUTERS = tuple(module.router for module in (*_RESOURCES, system, metrics))  # as the documentation lists them
