"""The HTTP server behind `edgert serve`: one file per family of routes."""
