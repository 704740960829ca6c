"""Columns by which the jobs of a group are compared."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Groups that were made before have no row: they are compared by latency."""
    op.create_table(
        "job_groups",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("objective", sa.String(20), nullable=False),
        sa.Column("constraints", sa.JSON, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("job_groups")
