"""Runs migrations on the connection that `app.jobs.store.database.migrate` brings."""

from alembic import context

from app.jobs.store.database import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
