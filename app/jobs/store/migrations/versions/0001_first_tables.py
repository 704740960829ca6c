"""Models and their files, blobs, targets, jobs with files and events, workers, idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_HASH = sa.String(64)
_ID = sa.String(32)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "blobs",
        sa.Column("sha256", _HASH, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("claimed_until", sa.Float, nullable=False),
    )
    op.create_table(
        "models",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("report", sa.JSON),
        sa.Column("code", sa.String(60)),
        sa.Column("detail", sa.Text),
        sa.Column("pointer", sa.Text),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_table(
        "model_files",
        sa.Column("model_id", _ID, sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256"), nullable=False, index=True),
    )
    op.create_table(
        "targets",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("group_id", _ID, nullable=False, index=True),
        sa.Column("state", sa.String(20), nullable=False, index=True),
        sa.Column("model_id", _ID, nullable=False, index=True),
        sa.Column("target", sa.String(63), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("queue", sa.String(100), nullable=False),
        sa.Column("enqueued", sa.Boolean, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("phase", sa.String(60), nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("summary", sa.JSON),
        sa.Column("code", sa.String(60)),
        sa.Column("detail", sa.Text),
        sa.Column("pointer", sa.Text),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("started", sa.Float),
        sa.Column("finished", sa.Float),
    )
    op.create_table(
        "job_files",
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("role", sa.String(10), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256"), nullable=False, index=True),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "job_events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("seen", sa.Float, nullable=False),
        sa.Column("queues", sa.JSON, nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("body", _HASH, nullable=False),
        sa.Column("group_id", _ID, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables."""
    for name in (
        "idempotency",
        "workers",
        "job_events",
        "job_files",
        "jobs",
        "targets",
        "model_files",
        "models",
        "blobs",
    ):
        op.drop_table(name)
