"""The one place where the version is written; the package's metadata is built from it."""

__version__ = "0.1.0"
