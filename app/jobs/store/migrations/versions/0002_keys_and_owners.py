"""Keys and owners, who holds which blob, labels, results that answer later jobs, counters."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_HASH = sa.String(64)
_ID = sa.String(32)
_OWNER = sa.String(63)
# Tables are altered by adding columns only: SQLite would rebuild them otherwise, and dropping the
# old one deletes what refers to it.
_OWNED = ("models", "jobs")


def upgrade() -> None:
    """Rows from before belong to nobody: where keys are required, administrators see them."""
    op.create_table(
        "keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("hash", _HASH, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("owner", _OWNER, nullable=False),
        sa.Column("scope", sa.String(10), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("used", sa.Float),
        sa.Column("revoked", sa.Float),
    )
    op.create_table(
        "holdings",
        sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256", ondelete="CASCADE"), primary_key=True),
        sa.Column("owner", _OWNER, primary_key=True),
        sa.Column("claimed_until", sa.Float, nullable=False),
    )
    op.execute("insert into holdings select sha256, '', claimed_until from blobs")
    op.drop_column("blobs", "claimed_until")
    op.create_table(
        "labels",
        sa.Column("subject", _ID, primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("value", sa.String(255), nullable=False),
    )
    op.create_index("ix_labels_name_value", "labels", ["name", "value"])
    op.create_table(
        "tallies",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("labels", sa.String(255), primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    for table in _OWNED:
        op.add_column(table, sa.Column("owner", _OWNER, nullable=False, server_default=""))
        op.create_index(f"ix_{table}_owner", table, ["owner"])
    op.add_column("models", sa.Column("used", sa.Float, nullable=False, server_default="0"))
    op.execute("update models set used = created")
    op.add_column("jobs", sa.Column("worker", sa.String(100)))
    op.add_column("jobs", sa.Column("sent", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("cache_key", _HASH))
    op.create_index("ix_jobs_cache_key", "jobs", ["cache_key"])
    op.add_column("jobs", sa.Column("cached_from", _ID))
    op.add_column("jobs", sa.Column("trace", sa.String(55)))
    # The queue is divided by owner now: what waits is sent to it again, under a name of its own.
    op.execute("update jobs set enqueued = false, sent = 1 where finished is null")
    _replace_idempotency(sa.Column("owner", _OWNER, primary_key=True))


def _replace_idempotency(*owner: sa.Column[str]) -> None:
    op.drop_table("idempotency")
    op.create_table(
        "idempotency",
        *owner,
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("body", _HASH, nullable=False),
        sa.Column("group_id", _ID, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Forget keys, owners, labels and counters."""
    _replace_idempotency()
    op.drop_index("ix_jobs_cache_key", "jobs")
    for name in ("trace", "cached_from", "cache_key", "sent", "worker"):
        op.drop_column("jobs", name)
    op.drop_column("models", "used")
    for table in _OWNED:
        op.drop_index(f"ix_{table}_owner", table)
        op.drop_column(table, "owner")
    op.drop_table("tallies")
    op.drop_table("labels")
    op.add_column("blobs", sa.Column("claimed_until", sa.Float, nullable=False, server_default="0"))
    op.drop_table("holdings")
    op.drop_table("keys")
