"""Runs revisions on the connection that the schema manager gives, each in a transaction of its own."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
