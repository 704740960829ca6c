"""Counters with their labels as JSON; they begin at zero, as monitoring expects of a restart."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def _create(name: str) -> None:
    op.create_table(
        name,
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("labels", sa.String(255), primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )


def upgrade() -> None:
    """Replace the table whose labels are Prometheus text."""
    op.drop_table("tallies")
    _create("counters")


def downgrade() -> None:
    """Bring it back, empty."""
    op.drop_table("counters")
    _create("tallies")
