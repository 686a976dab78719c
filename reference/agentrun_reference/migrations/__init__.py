"""The history of the schema, a revision a file: frozen SQL that imports nothing of the code that it serves."""
