"""The plan and its columns, the registry of rows, the pipeline of passes."""
