"""Deployed models."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_HASH = sa.String(64)
_ID = sa.String(32)


def upgrade() -> None:
    """Nothing was deployed before."""
    op.create_table(
        "deployments",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("owner", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("model_id", _ID, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.UniqueConstraint("owner", "name", "version"),
    )
    op.create_table(
        "deployment_files",
        sa.Column(
            "deployment_id", _ID, sa.ForeignKey("deployments.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256"), nullable=False),
    )
    op.create_index("ix_deployment_files_sha256", "deployment_files", ["sha256"])


def downgrade() -> None:
    """Forget all deployments."""
    op.drop_table("deployment_files")
    op.drop_table("deployments")
