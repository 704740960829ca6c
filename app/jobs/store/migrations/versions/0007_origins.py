"""Origin of a model that the service made."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Models that were uploaded have none."""
    op.add_column("models", sa.Column("origin", sa.JSON))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("models", "origin")
