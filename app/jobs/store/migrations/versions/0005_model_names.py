"""Names of models, which pages kept as labels before."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_MODELS = sa.table("models", sa.column("id", sa.String), sa.column("name", sa.String))
_LABELS = sa.table("labels", *(sa.column(name, sa.String) for name in ("subject", "name", "value")))
_OF_MODELS = (_LABELS.c.name == "name", _LABELS.c.subject.in_(sa.select(_MODELS.c.id)))


def upgrade() -> None:
    """A label `name` of a model becomes its name."""
    op.add_column("models", sa.Column("name", sa.String(255), nullable=False, server_default=""))
    label = sa.select(_LABELS.c.value).where(_LABELS.c.name == "name", _LABELS.c.subject == _MODELS.c.id)
    named = sa.func.coalesce(label.scalar_subquery(), "")
    op.execute(sa.update(_MODELS).values(name=named))
    op.execute(sa.delete(_LABELS).where(*_OF_MODELS))


def downgrade() -> None:
    """Names become labels again."""
    named = sa.select(_MODELS.c.id, sa.literal("name"), _MODELS.c.name).where(_MODELS.c.name != "")
    op.execute(sa.insert(_LABELS).from_select(["subject", "name", "value"], named))
    op.drop_column("models", "name")
